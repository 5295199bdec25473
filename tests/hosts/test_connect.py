"""`connect`: who this process is, read from what launchers and schedulers set; and in words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import optax
import pytest

import shardwise as sw
from shardwise._runtime.hosts.connect import Connection, _await_coordinator, _compare, _refuse_taken
from shardwise._runtime.hosts.find import Seat, find_seat
from shardwise._runtime.hosts.others import News, Section

from .launching import LIMIT, free_port, script

KNOWN = ("SLURM_", "OMPI_", "PMI_", "SHARDWISE_", "JAX_COORDINATOR", "KUBERNETES_", "JOB_COMP")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in [name for name in os.environ if name.startswith(KNOWN)]:
        monkeypatch.delenv(name)


def seat(monkeypatch, **env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return find_seat(None, None, None, 5)


def test_alone_it_does_nothing():
    me = sw.connect()
    assert (me.process, me.processes, me.first) == (0, 1, True)
    assert str(me) == "one process, alone"


@pytest.mark.parametrize(
    "run",
    [
        lambda: sw.evaluate(lambda _, x: x, None, np.ones(8, np.float32), batch=4),
        lambda: sw.data_parallel(lambda p, b: (p * b) ** 2, optax.sgd(0.1)),
    ],
)
def test_a_launched_script_that_never_joins_is_refused(monkeypatch, run):
    """Two processes would each do the whole work, and nobody would know."""
    monkeypatch.setenv("SHARDWISE_PROCESSES", "2")
    with pytest.raises(sw.ShardwiseError, match=r"has not joined the others(.|\n)*sw\.connect\(\)"):
        run()


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
}


def test_slurm(monkeypatch):
    found = seat(monkeypatch, **SLURM)
    assert (found.how, found.processes, found.process) == ("slurm", 4, 3)
    assert found.coordinator.startswith("node001:")


def test_launch_comes_before_a_scheduler(monkeypatch):
    found = seat(monkeypatch, **SLURM, SHARDWISE_COORDINATOR="h:1", SHARDWISE_PROCESSES="2",
                 SHARDWISE_PROCESS="1")  # fmt: skip
    assert found == Seat("shardwise launch", "h:1", 2, 1)


def test_one_task_is_alone(monkeypatch):
    assert seat(monkeypatch, **{**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SHARDWISE_COORDINATOR": "h:1"}, "SHARDWISE_PROCESSES, SHARDWISE_PROCESS are not set"),
        (
            {"SHARDWISE_COORDINATOR": "h:1", "SHARDWISE_PROCESSES": "x", "SHARDWISE_PROCESS": "0"},
            "SHARDWISE_PROCESSES: it is 'x'",
        ),
        (
            {"SHARDWISE_COORDINATOR": "h:1", "SHARDWISE_PROCESSES": "2", "SHARDWISE_PROCESS": "2"},
            "process 2 of 2",
        ),
        (
            {"SHARDWISE_COORDINATOR": "h", "SHARDWISE_PROCESSES": "2", "SHARDWISE_PROCESS": "1"},
            "An address is HOST:PORT",
        ),
        ({**SLURM, "SLURM_NTASKS": "four"}, "the scheduler's environment: it cannot be read"),
        ({"JAX_COORDINATOR_ADDRESS": "h:1"}, "not how many processes there are"),
        ({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "0"}, "jax\\[k8s\\]"),
    ],
)
def test_half_an_environment_is_refused(monkeypatch, env, words):
    with pytest.raises(sw.ShardwiseError, match=words):
        seat(monkeypatch, **env)


def test_an_mpi_that_jax_does_not_know(monkeypatch):
    monkeypatch.setattr("shardwise._runtime.hosts.find._has_mpi4py", lambda: False)
    with pytest.raises(sw.ShardwiseError, match=r"PMI_SIZE is 4.*\n.*mpi4py"):
        seat(monkeypatch, PMI_SIZE="4")


def test_a_slurm_job_without_srun_is_told(monkeypatch):
    with pytest.warns(UserWarning, match="4 tasks, but the script was not started by srun"):
        assert seat(monkeypatch, SLURM_NTASKS="4", SLURM_JOB_ID="7") is None


def test_arguments_are_given_together():
    with pytest.raises(sw.ShardwiseError, match="process is missing"):
        find_seat("h:1", 2, None, 5)
    assert find_seat("h:1", 2, 0, 5) == Seat("arguments", "h:1", 2, 0)


@pytest.mark.parametrize("name", ["timeout", "heartbeat"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "soon"])
def test_seconds(name, value):
    with pytest.raises(sw.ShardwiseError, match=f"argument '{name}'"):
        sw.connect(**{name: value})


def test_too_late():
    import jax

    jax.devices()
    with pytest.raises(sw.ShardwiseError, match=r"call sw.connect\(\) right after the imports"):
        sw.connect("127.0.0.1:1", processes=2, process=0)


def test_a_port_that_is_taken():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(sw.ShardwiseError, match=f"port {port} cannot be used"):
            _refuse_taken(Seat("arguments", f"127.0.0.1:{port}", 2, 0))


def test_a_coordinator_that_does_not_answer():
    where = Seat("slurm", f"127.0.0.1:{free_port()}", 2, 1)
    with pytest.raises(sw.ShardwiseError, match="no answer in 1 s: Connection refused"):
        _await_coordinator(where, 1)


def test_processes_that_run_something_else():
    one = {"host": "a", "JAX": "0.10.2", "shardwise": "1", "the script": "t.py 1"}
    found = _compare([one, {**one, "host": "b", "JAX": "0.12.0"}])
    assert found["wrong"] == [
        "process 0 on a has JAX 0.10.2, process 1 on b has 0.12.0.",
    ]
    found = _compare([one, {**one, "host": "b", "address": "127.0.1.1"}])
    assert "the name b resolves to 127.0.1.1 on that host" in found["notes"][0]
    found = _compare([one, {**one, "the script": "t.py 2"}])
    assert "has the script t.py 1, process 1 on a has t.py 2" in found["wrong"][0]


def test_a_process_that_took_part_may_end_first():
    heard = News.__new__(News)
    heard.sections = [Section("job", inner=2)]
    assert not heard._misses(1)
    heard.sections.append(Section("job.2"))
    assert heard._misses(1)
    assert not heard._misses(2)


def test_who_is_where():
    made = Connection(1, 4, "slurm", ("a", "a", "b", "b"))
    assert str(made) == "process 1 of 4 (slurm); processes per host: 2 on a, 2 on b"
    assert not made.first


def test_an_error_in_one_process_reaches_the_others(tmp_path):
    """Without the launcher's help: the processes tell each other."""
    path = script(
        tmp_path,
        """
        import numpy as np
        import shardwise as sw
        me = sw.connect()
        from jax.experimental import multihost_utils
        if me.process == 1:
            raise ValueError("a word of its own")
        multihost_utils.sync_global_devices("never")
        """,
    )
    env = {**os.environ, "SHARDWISE_COORDINATOR": f"127.0.0.1:{free_port()}",
           "SHARDWISE_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}  # fmt: skip
    running = [
        subprocess.Popen([sys.executable, path], env={**env, "SHARDWISE_PROCESS": str(k)},
                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for k in range(2)
    ]  # fmt: skip
    try:
        first, second = (process.communicate(timeout=LIMIT)[1] for process in running)
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [77, 1]
    assert "process 1 on" in first
    assert "failed: ValueError: a word of its own" in first
    assert "Check failure stack trace" not in first + second

"""Ends of a process while others wait for it: an interrupted start, a script that ends early."""

from __future__ import annotations

import itertools
import queue
import re
import signal
import sys
import types

import pytest

from shardwise._runtime.hosts.news import End, News, Section
from shardwise._runtime.launch import lead, leaving
from shardwise._runtime.launch.events import Ended, Exited, Reported
from shardwise._runtime.launch.failure import Failure, first_failure
from shardwise._runtime.launch.job import Job
from shardwise._runtime.launch.output import Output

from ..optional import because
from .launching import LIMIT, launch, launched, script, wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason=because("shardwise launch is not tried", "use Linux")
)

TWO = ("-n", 2, "--devices", 1)


def test_ctrl_c_ends_a_process_that_waits_for_the_others_to_join(tmp_path):
    path = script(
        tmp_path,
        f"""
        import os, socket, time
        if os.environ["SHARDWISE_PROCESS"] == "1":
            host, _, port = os.environ["SHARDWISE_COORDINATOR"].rpartition(":")
            while socket.socket().connect_ex((host, int(port))):
                time.sleep(0.1)
            open({str(tmp_path / "waits")!r}, "w").close()
            time.sleep(100_000)
        import shardwise as sw
        sw.connect()
        """,
    )
    with launched(*TWO, path) as process:
        wait_for((tmp_path / "waits").exists)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT)
    assert process.returncode == 130


STEPS = """
import sys, time
import jax, jax.numpy as jnp, numpy as np, optax
import shardwise as sw
me = sw.connect()
step = sw.data_parallel(lambda w, b: (b["x"] @ w["w"]) ** 2, optax.sgd(0.1), feed="own")
state = step.init({"w": jnp.ones(3)})
batch = {"x": np.ones((4, 3), "f4")}
for _ in range(2):
    state, metrics = step(state, batch)
"""
LEAVES = """
if me.process == {leaver}:
    sys.exit(0)
"""
NO_DUMP = "Check failure stack trace"


@pytest.mark.parametrize("leaver", [0, 1])
def test_one_step_less_is_reported_of_the_right_process(tmp_path, leaver):
    path = script(tmp_path, STEPS + LEAVES.format(leaver=leaver) + "float(step(state, batch)[1])")
    code, _, err = launch(*TWO, path)
    assert code == 77, err
    assert NO_DUMP not in err
    last = err.rpartition("shardwise launch: ")[2]
    assert re.match(rf"process {leaver} on \S+ failed first: it ended its script while", last)
    assert f"process {1 - leaver} on" in last
    assert "after 2 steps of data_parallel" in last
    assert "waits for it in step 3 of data_parallel" in last
    assert "All processes run the same number of steps" in last
    assert "Remedy: make their loops equally long" in last


def test_a_value_that_cannot_come_any_more_is_not_waited_for(tmp_path):
    path = script(tmp_path, STEPS + LEAVES.format(leaver=1) + 'step.init({"w": jnp.ones(3)})')
    code, _, err = launch(*TWO, path)
    assert code == 1, err
    assert NO_DUMP not in err
    assert "PeerError: process 1 on" in err
    last = err.rpartition("shardwise launch: ")[2]
    assert re.match(r"process 1 on \S+ failed first: it ended its script while process 0", last)
    assert "waits for it in the same arrays" in last


def test_work_alone_after_the_last_step_is_left_in_peace(tmp_path):
    """Longer than an alarm takes, on devices of its own, with a step of its own."""
    alone = """
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
    step = sw.data_parallel(lambda w, b: (b["x"] @ w["w"]) ** 2, optax.sgd(0.1), mesh=mesh)
    state = step.init({"w": jnp.ones(3)})
    until = time.monotonic() + 12
    while time.monotonic() < until:
        state, metrics = step(state, batch)
        time.sleep(0.5)
    print("written")
    """
    path = script(tmp_path, STEPS + LEAVES.format(leaver=1) + "if me.first:" + alone)
    code, out, err = launch(*TWO, path)
    assert code == 0, err
    assert "[0] written" in out
    assert "ended its script" not in err


def test_when_jax_gives_up_at_the_end_the_one_that_left_is_named(tmp_path):
    path = script(
        tmp_path,
        """
        import jax
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(shutdown_timeout_seconds=3)
        from jax.experimental import multihost_utils
        multihost_utils.sync_global_devices("both")
        if jax.process_index() == 0:
            multihost_utils.sync_global_devices("never")
        """,
    )
    code, _, err = launch(*TWO, path)
    last = err.rpartition("shardwise launch: ")[2]
    assert code == 1, err
    assert re.match(r"process 1 on \S+ failed first: it ended its script while others ran on", last)
    assert "process 0 did not come to the end" in last


# --- what is known, without processes -------------------------------------------------------


def test_the_frames_of_a_native_stack_trace_do_not_displace_the_error():
    output = Output(None, 2)
    output.open(1, 0)
    output.line(1, b"INTERNAL: Shutdown barrier has failed.\n", error=True)
    for _ in range(50):
        output.line(1, b"    @     0xffffa38d4d50  absl::LogMessage::Flush()\n", error=True)
    assert output.tail(1) == "INTERNAL: Shutdown barrier has failed."


@pytest.mark.parametrize(
    "order",
    list(itertools.permutations(["ended", "first", "second"])),
    ids=lambda order: " ".join(order),
)
def test_who_left_is_named_in_whatever_order_the_ends_are_heard(order, monkeypatch, tmp_path):
    """Both processes abort; only one says why; that one has ended its script is heard last."""
    monkeypatch.setattr(lead, "SETTLE", 0.01)
    events: queue.SimpleQueue = queue.SimpleQueue()
    heard = {
        "ended": Ended(1, "b"),
        "first": Exited(0, "a", -signal.SIGABRT, "another process was lost"),
        "second": Exited(1, "b", -signal.SIGABRT, "INTERNAL: Shutdown barrier has failed."),
    }
    for name in order:
        events.put(heard[name])
    crew = types.SimpleNamespace(start=lambda **_: None, stop=lambda: None)
    job = Job(("x.py",), processes=2)
    leading = lead.Lead(job, crew, events, Output(None, 2))  # pyright: ignore[reportArgumentType]
    failure = leading._attempt(0)
    assert failure is not None
    assert failure.code == 1
    assert failure.who == "process 1 on b"


def test_what_a_process_failed_with_is_kept_before_the_stacks_of_its_threads():
    output = Output(None, 2)
    output.open(1, 0)
    output.line(1, b"INTERNAL: Shutdown barrier has failed.\n", error=True)
    for _ in range(100):
        output.line(1, b'  File "x.py", line 3 in f\n', error=True)
    assert "Shutdown barrier" in output.tail(1)
    assert len(str(Failure("a", "b", output.tail(1), 1)).splitlines()) == 21


def in_step(steps: int, *sections: Section) -> News:
    heard = News.__new__(News)
    heard.steps, heard.sections = steps, [*sections] or [Section("job")]
    return heard


def test_only_who_has_begun_more_than_the_one_that_ended_waits_for_it():
    end = End(1, "b", sections=1, steps=2)
    assert in_step(2)._waits_in(end) == ""
    assert in_step(1)._waits_in(end) == ""
    assert in_step(3)._waits_in(end) == "step 3 of data_parallel"
    within = (Section("job", inner=2), Section("job.2", where="sw.fit"))
    assert in_step(2, *within)._waits_in(end) == "sw.fit"
    seen = (Section("job", inner=1), Section("job.1", where="sw.fit"))
    assert in_step(2, *seen)._waits_in(end) == ""


def test_a_line_says_who_has_ended_and_who_has_not(monkeypatch):
    now = 100.0
    monkeypatch.setattr(leaving.time, "monotonic", lambda: now)
    leavers = leaving.Leavers(3)
    assert leavers.notice({0, 1, 2}) is None
    leavers.add(Ended(1, "a"))
    now += 29
    assert leavers.notice({0, 1, 2}) is None
    now += 2
    words = leavers.notice({0, 1, 2})
    assert words == (
        "process 1 came to the end of the script up to 31 s ago, process 0, 2 did not yet; the job "
        "ends with the last of them"
    )
    assert leavers.notice({0, 1, 2}) is None
    now += 100
    assert leavers.notice({0, 2}) is None  # it is gone, and waits for nobody
    leavers.add(Ended(0, "a"))
    leavers.add(Ended(2, "a"))
    assert leavers.notice({0, 1, 2}) is None


def test_who_is_blamed():
    left = Reported(0, "a", 77, "process 1 on b has ended", peer=True, left="process 1 on b")
    gone = Exited(0, "a", -signal.SIGABRT, "INTERNAL: Shutdown barrier has failed.")
    error = Reported(2, "c", 1, "ValueError: x", peer=False)
    told = str(first_failure([Exited(1, "b", 77, ""), gone, left]))
    assert told.startswith("process 1 on b failed first: it ended its script while process 0 on a")
    assert "process 2 on c" in str(first_failure([left, error]))
    raised = Reported(0, "a", 1, "process 1 on b has ended", peer=True, left="process 1 on b")
    told = str(first_failure([raised, Exited(0, "a", 1, "its last words")]))
    assert told.startswith("process 1 on b failed first: it ended its script while process 0 on a")

    leavers = leaving.Leavers(3)
    assert leavers.blamed([gone]) is None  # nobody has left
    leavers.add(Ended(1, "b"))
    blamed = str(leavers.blamed([gone]))
    assert blamed.startswith("process 1 on b failed first")
    assert "process 0, 2 did not come" in blamed
    broken = Reported(0, "a", 1, "ValueError: Gloo: Connection closed by peer", peer=False)
    assert leavers.blamed([broken, gone]) is not None
    assert leavers.blamed([broken, gone, Exited(0, "a", 1, "its last words")]) is not None
    assert leavers.blamed([broken]) is None
    assert leavers.blamed([gone, error]) is None
    assert leavers.blamed([Exited(0, "a", -signal.SIGABRT, "a crash of its own")]) is None

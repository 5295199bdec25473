"""The launcher, with scripts that need no JAX: who failed, who is stopped, who starts again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shardwise._base.errors import ShardwiseError
from shardwise._runtime.launch.events import Exited, Lost, Reported
from shardwise._runtime.launch.failure import first_failure
from shardwise._runtime.launch.job import Job, deal_devices, parse_address

from ..optional import because
from .launching import KILL, LIMIT, free_port, is_alive, launch, launched, script, wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason=because("shardwise launch is not tried", "use Linux")
)

WHO = """
    import os, sys, time
    me, attempt = int(os.environ["SHARDWISE_PROCESS"]), int(os.environ["SHARDWISE_ATTEMPT"])
"""


def test_output_is_prefixed_and_arguments_are_the_scripts(tmp_path):
    path = script(tmp_path, WHO + "    print(me, *sys.argv[1:], __name__)")
    code, out, _ = launch("--processes", 2, path, "--lr", "0.1", "-x")
    assert code == 0
    assert sorted(out.splitlines()) == ["[0] 0 --lr 0.1 -x __main__", "[1] 1 --lr 0.1 -x __main__"]


GLOO = "[Gloo] Rank 0 is connected to {} peer ranks. Expected number of connected peer ranks is : 1"


def test_what_gloo_says_stands_not_among_what_the_script_prints(tmp_path):
    path = script(tmp_path, f"print({GLOO.format(1)!r}, 'mine', sep='\\n')")
    assert launch(path)[1] == "[0] mine\n"
    assert launch("--log-dir", tmp_path / "logs", path)[0] == 0
    assert "[Gloo]" in (tmp_path / "logs" / "attempt-0" / "process-0.log").read_text()


@pytest.mark.parametrize("line", [GLOO.format(0), f"mine {GLOO.format(1)}", "[Gloo] mine"])
def test_whatever_else_is_printed_about_gloo_is_shown(tmp_path, line):
    assert launch(script(tmp_path, f"print({line!r})"))[1] == f"[0] {line}\n"


def test_the_first_to_fail_gives_the_exit_code_and_the_last_words(tmp_path):
    path = script(
        tmp_path,
        WHO
        + """
    if me == 1:
        print("on the way", file=sys.stderr)
        sys.exit(3)
    time.sleep(900)
    """,
    )
    code, _, err = launch("-n", 3, path)
    assert code == 3
    assert "process 1 on" in err
    assert "failed first: exit code 3" in err
    assert err.rstrip().endswith("on the way")


def test_an_error_is_shown_without_the_launchers_frames(tmp_path):
    path = script(tmp_path, "raise ValueError('mine')")
    code, _, err = launch(path)
    assert code == 1
    assert "ValueError: mine" in err
    assert "_runtime" not in err


def test_started_again_after_a_kill(tmp_path):
    path = script(
        tmp_path,
        WHO
        + """
    import signal
    if me == 1 and attempt < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    print("attempt", attempt)
    """,
    )
    code, out, err = launch("-n", 2, "--restarts", 2, path)
    assert code == 0
    assert out.count("attempt 2") == 2
    assert err.count("killed by SIGKILL") == 2
    assert "starting again" in err


def test_a_crash_loop_is_ended(tmp_path):
    path = script(tmp_path, "import os; raise SystemExit('no data')")
    code, _, err = launch("-n", 2, "--restarts", 50, path)
    assert code == 1
    assert "crash loop" in err
    assert err.count("starting again after") == 2
    assert err.rstrip().endswith("no data")


def test_signals_are_passed_on_and_waited_for(tmp_path):
    path = script(
        tmp_path,
        WHO
        + """
    import signal
    def save(*_):
        print("saved", me, flush=True)
        sys.exit(143)
    signal.signal(signal.SIGTERM, save)
    open(f"ready{me}", "w").close()
    time.sleep(900)
    """.replace('f"ready{me}"', f'f"{tmp_path}/ready{{me}}"'),
    )
    with launched("-n", 2, "--restarts", 3, path) as process:
        wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 2)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 143
    assert sorted(out.splitlines()) == ["[0] saved 0", "[1] saved 1"]


def test_nothing_is_left_behind_when_the_launcher_is_killed(tmp_path):
    path = script(
        tmp_path,
        WHO
        + f"""
    import subprocess
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])
    with open("{tmp_path}/pids", "a") as file:
        file.write(f"{{os.getpid()}} {{inner.pid}} ")
    time.sleep(900)
    """,
    )
    pids = tmp_path / "pids"
    with launched("-n", 2, path) as process:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 4)
        process.send_signal(KILL)
        wait_for(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()), 20)


def test_logs_in_files(tmp_path):
    path = script(tmp_path, WHO + "    print('out', me); print('err', me, file=sys.stderr)")
    code, out, _ = launch("-n", 2, "--log-dir", tmp_path / "logs", path)
    assert (code, out) == (0, "")
    held = (tmp_path / "logs" / "attempt-0" / "process-1.log").read_text()
    assert sorted(held.splitlines()) == ["err 1", "out 1"]


TWO = ("--nodes", 2, "--timeout", int(LIMIT))


def test_two_machines_start_again_together(tmp_path):
    path = script(
        tmp_path,
        WHO
        + """
    if me == 2 and attempt == 0:
        raise ValueError("machine 1 is ill")
    if attempt == 0:
        time.sleep(900)
    print("done", me, os.environ["SHARDWISE_PROCESSES"])
    """,
    )
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--restarts", 1)
    with launched(*TWO, "--node", 1, *where, "-n", 1, path) as second:
        code, out, err = launch(*TWO, "--node", 0, *where, "-n", 2, path)
        rest, _ = second.communicate(timeout=LIMIT)
    assert (code, second.returncode) == (0, 0)
    assert sorted((out + rest).splitlines()) == ["[0] done 0 3", "[1] done 1 3", "[2] done 2 3"]
    assert "process 2 on" in err
    assert "machine 1 is ill" in err


def test_a_launcher_that_is_killed_may_come_back(tmp_path):
    path = script(
        tmp_path,
        WHO
        + f"""
    open(f"{tmp_path}/up-{{me}}-{{attempt}}", "w").close()
    if attempt == 0:
        time.sleep(900)
    """,
    )
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--restarts", 1, path)
    with launched(*TWO, "--node", 0, *where) as first:
        with launched(*TWO, "--node", 1, *where) as second:
            wait_for(lambda: (tmp_path / "up-1-0").exists() and (tmp_path / "up-0-0").exists())
            second.send_signal(KILL)
        code, _, _ = launch(*TWO, "--node", 1, *where)
        _, err = first.communicate(timeout=LIMIT)
    assert (first.returncode, code) == (0, 0)
    assert "machine 1 failed first: contact was lost" in err


def test_machines_that_differ_are_refused_on_both(tmp_path):
    path = script(tmp_path, "print('never')")
    where = (*TWO, "--coordinator", f"127.0.0.1:{free_port()}")
    with launched(*where, "--node", 0, path, "a") as first:
        code, _, err = launch(*where, "--node", 1, path, "b")
        wait_for(lambda: "refused: its arguments is a on machine 0" in first.stderr.readline())
        first.send_signal(signal.SIGINT)  # it waits for another launcher of machine 1
        out, _ = first.communicate(timeout=LIMIT)
    assert (code, first.returncode, out) == (2, 130, "")
    assert "its arguments is a on machine 0 and b on machine 1" in err


def test_a_machine_that_does_not_come_is_not_waited_for_without_end(tmp_path):
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--timeout", 1, "--nodes", 2)
    code, out, err = launch(*where, "--node", 0, script(tmp_path, "print('never')"))
    assert (code, out) == (2, "")
    assert "machine 1 did not join within 1 s" in err


def test_two_launchers_with_one_port(tmp_path):
    path = script(tmp_path, "print('never')")
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--nodes", 2, "--node", 0)
    with launched(*where, path) as first:
        wait_for(lambda: "waiting" in first.stderr.readline())
        code, _, err = launch(*where, path)
    assert code == 2
    assert "Address already in use" in err
    assert "choose another port on all machines" in err


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"processes": 0}, "--processes 0"),
        ({"devices": 0}, "--devices 0"),
        ({"nodes": 2, "node": 3}, "--node 3 of --nodes 2"),
        ({"nodes": 2}, "--nodes 2 without --coordinator"),
        ({"command": ("absent.py",)}, "the script 'absent.py'"),
        ({"command": ("no.such", "x"), "module": True}, "-m no.such"),
        ({"restarts": -1}, "--restarts -1"),
        ({"timeout": 0}, "--timeout 0"),
    ],
)
def test_bad_input_in_words(wrong, words):
    with pytest.raises(ShardwiseError, match=words):
        Job(**{"command": (__file__,), **wrong}).check()


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:x", "host:0", "host:70000"])
def test_an_address_is_host_and_port(text):
    with pytest.raises(ShardwiseError, match="An address is HOST:PORT"):
        parse_address(text)


def test_accelerators_are_dealt_out(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert deal_devices(Job((__file__,), processes=2)) == ["4,5", "6,7"]
    assert deal_devices(Job((__file__,), processes=2, devices=1)) is None
    with pytest.raises(ShardwiseError, match="--processes 3 for 4 accelerators"):
        deal_devices(Job((__file__,), processes=3))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # they are not used
    assert deal_devices(Job((__file__,), processes=3)) is None


def test_the_cause_comes_before_what_follows_from_it():
    cause = Reported(2, "b", 1, "ValueError: x", peer=False)
    heard = [
        Exited(0, "a", -signal.SIGABRT, "JAX gave up"),
        Reported(1, "a", 1, "PeerError: 2", peer=True),
        Lost(1, None, "closed"),
        cause,
    ]
    assert "process 2 on b" in str(first_failure(heard))
    assert "machine 1" in str(first_failure(heard[:3]))
    assert "process 0" in str(first_failure(heard[:2]))
    assert first_failure([Exited(1, "a", -9, "")]).code == 137


def test_of_several_processes_one_reports_the_tests(tmp_path):
    path = script(tmp_path, "def test_it():\n    assert 1 == 2", "test_it.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(path)]
    said = [
        subprocess.run(command, env={**os.environ, "SLURM_PROCID": number}, cwd=tmp_path,
                       capture_output=True, text=True, timeout=LIMIT, check=False)
        for number in "01"
    ]  # fmt: skip
    assert [one.returncode for one in said] == [1, 1]
    assert "1 failed" in said[0].stdout
    assert said[1].stdout == ""

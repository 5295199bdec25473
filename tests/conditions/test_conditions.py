"""Runs under conditions: what was stopped goes on, what ran is counted, parts are parts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.copies import ROOT, environment

from . import record
from .processes import STOPPED, DutyCycle, descendants
from .repeat import Runs, batches

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def state(process: subprocess.Popen) -> str | None:
    return descendants(os.getpid()).get(process.pid)


def test_processes_are_stopped_and_go_on_but_for_those_that_a_test_stopped():
    with (
        subprocess.Popen(WAITS, stdin=subprocess.PIPE) as running,
        subprocess.Popen(WAITS, stdin=subprocess.PIPE) as stopped,
    ):
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        duty = DutyCycle(os.getpid())
        duty.stop()
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        assert state(running) == state(stopped) == STOPPED
        duty.go_on()
        os.waitid(os.P_PID, running.pid, os.WCONTINUED | os.WNOWAIT)
        assert state(running) != STOPPED
        assert state(stopped) == STOPPED
        stopped.send_signal(signal.SIGCONT)


TESTS = """
import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.fixture
def broken():
    yield
    raise ValueError("afterwards")
def test_fails_afterwards(broken): pass
def test_is_skipped(): pytest.skip("no reason")
def test_starts():
    import subprocess, sys
    subprocess.run([sys.executable, "-c", ""])
@pytest.fixture
def timer():
    import threading
    threading.Timer(0.0, print).start()
def test_has_a_fixture_that_starts(timer): pass
def test_has_a_limit():
    HANGS = 900.0
"""


def run(folder: Path, *, part: str = "1/1", workers: int = 0) -> list[dict]:
    file, journal = folder / "test_some.py", folder / "record"
    file.write_text(TESTS)
    journal.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conditions.record"]
    command += ["--rootdir", str(folder), "-n", str(workers), str(file)]
    env = environment(ROOT, **{record.FILE: str(journal), record.PART: part})
    subprocess.run(command, env=env, cwd=folder, capture_output=True)
    return list(record.read(journal))


def test_every_test_is_recorded_once_with_its_outcome(tmp_path):
    lines = run(tmp_path, workers=2)
    outcomes = {line["test"]: line["outcome"] for line in lines if "test" in line}
    assert {"selected": 7} in lines
    assert outcomes == {
        "test_some.py::test_passes": "passed",
        "test_some.py::test_fails": "failed",
        "test_some.py::test_fails_afterwards": "failed",
        "test_some.py::test_is_skipped": "skipped",
        "test_some.py::test_starts": "passed",
        "test_some.py::test_has_a_fixture_that_starts": "passed",
        "test_some.py::test_has_a_limit": "passed",
    }
    starts = {line["test"][14:]: line["starts"] for line in lines if "starts" in line}
    assert starts.keys() == {"test_starts", "test_has_a_fixture_that_starts", "test_has_a_limit"}
    assert "subprocess.Popen" in starts["test_starts"]
    assert record.failures(lines) == [
        "test_some.py::test_fails",
        "test_some.py::test_fails_afterwards",
    ]


def test_a_record_that_was_cut_off_is_read(tmp_path):
    file = tmp_path / "record"
    file.write_text('{"selected": 4}\n{"test": "t", "outc')
    assert list(record.read(file)) == [{"selected": 4}]


def test_parts_are_all_of_it_and_forms_of_a_test_stay_together(tmp_path):
    tests = [f"tests/test_x.py::test_{k}[{form}]" for k in range(40) for form in "ab"]
    parts = [{test for test in tests if record.in_part(test, f"{k}/3")} for k in (1, 2, 3)]
    assert sorted(test for part in parts for test in part) == sorted(tests)
    assert all(parts)
    assert all((f"{test[:-3]}[b]" in part) for part in parts for test in part)
    selected = [line["selected"] for k in (1, 2) for line in run(tmp_path, part=f"{k}/2")[:1]]
    assert sum(selected) == 7


def ran(test: str, outcome: str = "passed", seconds: float = 1.0) -> dict:
    return {"test": test, "outcome": outcome, "seconds": seconds, "starts": ["os.fork"]}


def test_what_ran_is_not_run_again():
    lines = [ran("a.py::t"), ran("a.py::t", "failed", 3.0), ran("a.py::u"), ran("b.py::t")]
    starts_nothing = {"test": "b.py::w", "outcome": "passed", "seconds": 1.0}
    known = Runs([*lines, ran("b.py::v", "skipped"), starts_nothing])
    assert known.rounds("a.py") == 1
    assert known.length("a.py") == 3.0
    assert known.rounds("c.py") == 0
    assert "| a.py | 2 | 1 to 2 | 3 | 1 |" in known.table()
    assert "failed 1 of 2 times: a.py::t" in known.table()
    assert "| all | 3 | 1 or more | 4 | 1 |" in known.table()


def test_each_file_is_dealt_as_often_as_it_lacks_runs_and_short_ones_together():
    lengths = {"long": 50.0, "short": 1.0, "brief": 2.0}
    dealt = list(batches({"long": 2, "short": 3, "brief": 1}, lengths))
    assert dealt == [["long"], ["brief", "short"], ["long"], ["short"], ["short"]]

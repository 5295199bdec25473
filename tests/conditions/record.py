"""A plugin of pytest: one line for every test that ran, as it ends; and one part of the tests.

`SHARDWISE_RECORD` names the file, to which lines are appended: a run that is interrupted loses
nothing. `SHARDWISE_PART=2/3` runs the second of three parts.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

FILE = "SHARDWISE_RECORD"
PART = "SHARDWISE_PART"
STARTS = "starts"


EVENTS = {
    *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"),
    *("time.sleep", "socket.bind", "socket.connect"),
    *("os.kill", "os.killpg", "signal.pthread_kill"),
}
"""What Python reports when something is started, stopped or waited for."""

LIMITS = re.compile(r"HANGS|LIMIT|Limits\(|monotonic|time_limit|timeout")
"""What a test with a limit in seconds contains."""


def in_part(nodeid: str, part: str) -> bool:
    """Whether a test belongs to a part; all forms of a test belong to the same one."""
    number, parts = map(int, part.split("/"))
    return zlib.crc32(nodeid.partition("[")[0].encode()) % parts == number - 1


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(FILE):
        config.pluginmanager.register(_Starts())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(_Recorder(os.environ[FILE]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = os.environ.get(PART, "1/1")
    left_out = [item for item in items if not in_part(item.nodeid, part)]
    items[:] = [item for item in items if in_part(item.nodeid, part)]
    config.hook.pytest_deselected(items=left_out)


class _Starts:
    """Notes what each test starts: a process, a connection, a wait, a timer, a limit in seconds."""

    def __init__(self):
        self.events: set[str] = set()
        sys.addaudithook(lambda event, _: event in EVENTS and self.events.add(event))
        start = threading.Thread.start

        def noted(timer: threading.Timer) -> None:
            self.events.add("threading.Timer")
            start(timer)

        threading.Timer.start = noted

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.events.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            if LIMITS.search(inspect.getsource(item.obj)):  # type: ignore[attr-defined]
                self.events.add("limit")
            if self.events:
                item.user_properties.append((STARTS, sorted(self.events)))


class _Recorder:
    """Appends a line for each test: its outcome and its seconds, set-up and tear-down included."""

    def __init__(self, file: str):
        self.file, self.running = file, {}

    def write(self, **line: Any) -> None:
        with open(self.file, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.write(selected=len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if node.gateway.id == "gw0":
            self.write(selected=len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds, text = self.running.pop(report.nodeid, ("passed", 0.0, ""))
        seconds += report.duration
        if report.failed:
            outcome, text = "failed", text + report.longreprtext
        elif report.skipped and outcome == "passed":
            outcome = "skipped"
        if report.when in ("setup", "call"):
            self.running[report.nodeid] = (outcome, seconds, text)
        else:  # the end of the test, or of the worker that ran it
            line = {"test": report.nodeid, "outcome": outcome, "seconds": round(seconds, 2)}
            if starts := dict(report.user_properties).get(STARTS):
                line[STARTS] = starts
            self.write(**line, **({"failure": text} if text else {}))


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a record; the last one may have been cut off."""
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def failures(lines: Iterable[dict[str, Any]]) -> list[str]:
    """Return the tests that failed at least once."""
    return sorted({line["test"] for line in lines if line.get("outcome") == "failed"})

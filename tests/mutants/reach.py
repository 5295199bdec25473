"""A plugin of pytest: which tests execute which lines of the package.

`SHARDWISE_REACH` names the file, to which a line is appended for every test that executes one of
the lines in `SHARDWISE_LINES`, a JSON list such as `["shardwise/_program/ir.py:12"]`. It needs
Python 3.12, whose `sys.monitoring` reports the first execution of a line and costs little after it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.copies import ROOT

FILE, LINES = "SHARDWISE_REACH", "SHARDWISE_LINES"
USABLE = sys.version_info >= (3, 12)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(FILE):
        worker = hasattr(config, "workerinput")
        reached = _Reached(os.environ[FILE], json.loads(os.environ[LINES]), worker)
        config.pluginmanager.register(reached)


class _Reached:
    """Appends a line for each test: the wanted lines that it executed, and its seconds."""

    def __init__(self, file: str, wanted: Iterable[str], worker: bool):
        self.file, self.worker, self.wanted, self.reached = file, worker, set(wanted), set()
        self.files = {line.partition(":")[0] for line in self.wanted}
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "tests.mutants")
        sys.monitoring.register_callback(sys.monitoring.COVERAGE_ID, events.LINE, self._executed)
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, events.LINE)

    def _executed(self, code, line: int):
        name = code.co_filename.removeprefix(f"{ROOT}/")
        if name in self.files and f"{name}:{line}" in self.wanted:
            self.reached.add(f"{name}:{line}")
        return sys.monitoring.DISABLE  # until the next test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.reached.clear()
        sys.monitoring.restart_events()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            item.user_properties.append(("reached", sorted(self.reached)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lines = dict(report.user_properties).get("reached")
        if report.when == "call" and report.passed and lines and not self.worker:
            line = {"test": report.nodeid, "seconds": round(report.duration, 2), "lines": lines}
            with open(self.file, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


def read(file: Path) -> dict[str, list[str]]:
    """Return the tests that execute each line, the quickest first."""
    found: dict[str, list[tuple[float, str]]] = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        each = json.loads(text)
        for line in each["lines"]:
            found.setdefault(line, []).append((each["seconds"], each["test"]))
    return {line: [test for _, test in sorted(tests)] for line, tests in found.items()}

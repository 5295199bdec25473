"""A plugin of pytest: which tests execute which lines of the package.

`SHARDWISE_REACH` names the file, to which a line is appended for every test that executes one of
the lines in `SHARDWISE_LINES`, a JSON list such as `["shardwise/_program/ir.py:12"]`. It needs
Python 3.12, whose `sys.monitoring` reports the first execution of a line and costs little after it.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.copies import ROOT

FILE, LINES = "SHARDWISE_REACH", "SHARDWISE_LINES"
TOOL = 1
"""The number that `sys.monitoring` reserves for coverage."""
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
        sys.monitoring.use_tool_id(TOOL, "tests.mutants")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.LINE, self._executed)

    def _executed(self, code: types.CodeType, line: int) -> object:
        self.reached.add(f"{code.co_filename.removeprefix(f'{ROOT}/')}:{line}")
        return sys.monitoring.DISABLE  # until the next test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        for module in [*sys.modules.values()]:
            file = str(getattr(module, "__file__", "")).removeprefix(f"{ROOT}/")
            if file in self.files:
                self.files.remove(file)
                for code in _codes(vars(module).values(), module.__name__):
                    sys.monitoring.set_local_events(TOOL, code, sys.monitoring.events.LINE)
        self.reached.clear()
        sys.monitoring.restart_events()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            item.user_properties.append(("reached", sorted(self.reached)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lines = self.wanted.intersection(dict(report.user_properties).get("reached", ()))
        if report.when == "call" and report.passed and lines and not self.worker:
            line = {
                "test": report.nodeid,
                "seconds": round(report.duration, 2),
                "lines": sorted(lines),
            }
            with open(self.file, "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")


def _codes(values: Iterable[Any], module: str) -> Iterator[types.CodeType]:
    """Yield the code of functions and methods of a module, and of what is defined in them."""
    for value in values:
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, type) and value.__module__ == module:
            yield from _codes(vars(value).values(), module)
        for name in ("__func__", "fget", "func"):  # static methods, properties, cached ones
            value = getattr(value, name, value)
        code = value if isinstance(value, types.CodeType) else getattr(value, "__code__", None)
        if isinstance(code, types.CodeType):
            yield code
            yield from _codes(code.co_consts, module)


ANY = "any"
"""Where the tests are that execute anything: a line that an import executes is one of all tests."""


def read(file: Path) -> dict[str, list[str]]:
    """Return the tests that execute each line: of each file the quickest, then the next ones."""
    found: dict[str, list[tuple[float, str]]] = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        each = json.loads(text)
        for line in (*each["lines"], ANY):
            found.setdefault(line, []).append((each["seconds"], each["test"]))
    return {line: _in_turns(sorted(tests)) for line, tests in found.items()}


def _in_turns(tests: Iterable[tuple[float, str]]) -> list[str]:
    seen: Counter[str] = Counter()
    ranked = []
    for seconds, test in tests:
        file = test.partition("::")[0]
        ranked.append((seen[file], seconds, test))
        seen[file] += 1
    return [test for *_, test in sorted(ranked)]

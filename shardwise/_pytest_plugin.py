"""The pytest plugin: a `mesh` fixture, and readable failures of `assert sw.check(...)`.

pytest loads it in every project of an environment that has shardwise, so nothing here imports JAX
until a test asks for a mesh.
"""

from __future__ import annotations

import ast
import io
import itertools
import numbers
import os
import sys
from collections.abc import Generator, Sequence
from types import FrameType
from typing import Any, NoReturn

import pytest

from ._base.errors import explain_error
from ._runtime.launch.report import process_number

MARKER = (
    "mesh(**axes): run the test on every mesh of these sizes, passed as the fixture 'mesh': "
    "@pytest.mark.mesh(data=[1, 2, 4, 8], model=2)."
)


EXAMPLE = "@pytest.mark.mesh(data=[1, 2, 4, 8], model=2)"


class _Nowhere(io.TextIOBase):
    """An output stream that discards everything, for processes that do not report."""

    def write(self, text: str, /) -> int:
        return len(text)


@pytest.hookimpl(trylast=True)  # after the reporter is registered
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; silence the reports of all processes except the first."""
    config.addinivalue_line("markers", MARKER)
    if process_number() > 0 and config.pluginmanager.has_plugin("terminalreporter"):
        config.get_terminal_writer()._file = _Nowhere()  # pyright: ignore


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Any:
    """A virtual mesh, one for each combination of the sizes that `@pytest.mark.mesh` names."""
    if not hasattr(request, "param"):
        late = any(request.node.iter_markers("mesh"))
        reason = ": a mark in pytest.param comes too late for it" if late else ""
        remedy = "@pytest.mark.mesh(data=[1, 2, 4, 8])" + " above the test" * late
        _refuse(request.node, f"the fixture 'mesh' has no axis sizes{reason}.", remedy)
    from ._mesh import mesh as make_mesh

    return make_mesh(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that has the marker and takes `mesh`: one test for each mesh."""
    marks = list(metafunc.definition.iter_markers("mesh"))
    takes = metafunc.config.stash.setdefault(TAKES, set())
    if "mesh" in metafunc.fixturenames:
        takes.update(node.nodeid for node in metafunc.definition.listchain())
    if "mesh" not in metafunc.fixturenames:
        # A mark on a class or a module may be meant for its other tests.
        if any(mark.name == "mesh" for mark in metafunc.definition.own_markers):
            _refuse_unused(metafunc.definition)
    elif marks and not _has_params(metafunc.definition):
        _refuse_ignored_mark(metafunc.definition)
        axes = _axes(marks, metafunc.definition)
        meshes = [
            dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())
        ]
        ids = ["-".join(f"{name}={size}" for name, size in sizes.items()) for sizes in meshes]
        metafunc.parametrize("mesh", meshes, ids=ids, indirect=True)


def _has_params(item: Any) -> bool:
    """Return whether the test takes a user-defined fixture `mesh` that already has params."""
    definitions = item._fixtureinfo.name2fixturedefs.get("mesh", ())
    return bool(definitions) and definitions[-1].params is not None


def _refuse_ignored_mark(item: Any) -> None:
    """Fail if a mark names meshes for a user-defined fixture that does not take `request`."""
    definitions = item._fixtureinfo.name2fixturedefs.get("mesh", ())
    if not definitions or {"request", "mesh"} & {*definitions[-1].argnames}:
        return
    code = getattr(definitions[-1].func, "__code__", None)
    place = f" ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})" if code else ""
    _refuse(
        item,
        f"the fixture 'mesh' here{place} ignores the meshes of @pytest.mark.mesh.",
        "remove the mark, or use its sizes in the fixture: "
        "def mesh(request): return sw.mesh(**request.param).",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test without `mesh` if no test takes the mesh of its mark.

    The mark may be on the test itself, or on its class or module.
    """
    if "mesh" in getattr(item, "fixturenames", ()):
        return
    takes = item.config.stash.setdefault(TAKES, set())
    parts = any("::" in str(arg) for arg in item.config.args)
    for node in item.listchain():
        # If only some tests of a module were selected, the others were not collected, and may use
        # the mark of the module.
        whole = isinstance(node, pytest.Item | pytest.Class) or not parts
        marked = any(mark.name == "mesh" for mark in node.own_markers)
        if whole and marked and node.nodeid not in takes:
            _refuse_unused(item)


TAKES = pytest.StashKey[set[str]]()
"""The tests that take a mesh, and the classes and modules that have such tests."""


def _axes(marks: Sequence[pytest.Mark], test: Any) -> dict[str, list[int]]:
    """Return the sizes of each axis. The closest mark, which comes first, has precedence."""
    axes: dict[str, list[int]] = {}
    for mark in reversed(marks):
        if mark.args or not mark.kwargs:
            _refuse(test, f"mesh{mark.args!r} names no axes by keywords.", EXAMPLE)
        for name, sizes in mark.kwargs.items():
            several = isinstance(sizes, list | tuple | range)
            column = list(sizes) if several else [sizes]
            if not column or not all(map(_is_size, column)):
                what = f"{name}={sizes!r} is not a positive integer or a list of them."
                _refuse(test, what, EXAMPLE)
            # A repeated size is one mesh, and one test.
            axes[name] = list(dict.fromkeys(int(size) for size in column))
    return axes


def _is_size(value: Any) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and int(value) > 0


def _place(item: pytest.Item) -> str:
    """Return the name of a test and its first line, that of its decorators."""
    line = item.location[1]
    return f"{item.nodeid} (line {line + 1})" if line is not None else item.nodeid


def _refuse_unused(item: Any) -> None:
    _refuse(
        item,
        "the test does not take the mesh of @pytest.mark.mesh.",
        "name it as an argument, def test_it(mesh), or remove the mark.",
    )


def _refuse(item: Any, what: str, remedy: str) -> NoReturn:
    pytest.fail(explain_error(what, where=_place(item), remedy=remedy), pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the whole verdict when `assert verdict` fails.

    pytest would show its truncated repr on one line. The message of the exception is replaced
    before pytest creates the report, so that all reporters and xdist show the same. The line in
    the summary begins with code and place, since pytest truncates it too.
    """
    # An exception from a method of a TestCase is stored on the item until the report is created.
    stored = getattr(item, "_excinfo", None)
    verdicts = _reword(stored[0] if stored else call.excinfo)
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and verdicts and verdicts[0].findings:
        crash.message = _summary(verdicts[0].findings[0])
    return report


def _reword(info: pytest.ExceptionInfo[BaseException] | None) -> list[Any]:
    """Write the verdicts that an `assert` tested into its message, and return them."""
    error = info.value if info else None
    if info is None or not isinstance(error, AssertionError):
        return []
    entry = info.traceback[-1]
    verdicts = _asserted(str(entry.statement), entry.frame.raw)
    if verdicts:
        error.args = ("\n\n".join([*_user_message(error, verdicts), *map(str, verdicts)]),)
    return verdicts


def _summary(finding: Any) -> str:
    where = finding.where
    place = f" {os.path.relpath(where.file)}:{where.line}" if where.file else ""
    return f"{finding.code}{place}: {finding.message}"


def _asserted(statement: str, frame: FrameType) -> list[Any]:
    """Return the wrong verdicts that an `assert` tested."""
    homes = {"shardwise._analysis.check": "Verdict", "shardwise._analysis.prove": "Proof"}
    kinds = tuple(getattr(sys.modules[m], name) for m, name in homes.items() if m in sys.modules)
    test = _test_of(statement)
    if not kinds or test is None or not _is_about_truth(test):
        return []
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    # pytest's rewritten assert keeps the values of calls in variables of these names.
    values = [
        value
        for name, value in frame.f_locals.items()
        if name in names or name.startswith("@py_assert")
    ]
    wrong = [value for value in values if isinstance(value, kinds) and not value.ok]
    return list({id(value): value for value in wrong}.values())


def _test_of(statement: str) -> ast.expr | None:
    """Return the condition of the only `assert` in a statement."""
    try:
        nodes = ast.walk(ast.parse(statement.strip()))
    except SyntaxError:
        return None
    tests = [node.test for node in nodes if isinstance(node, ast.Assert)]
    return tests[0] if len(tests) == 1 else None


def _is_about_truth(test: ast.expr) -> bool:
    """Return whether a condition tests only truth values, without comparison or negation."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_about_truth, test.values))
    if isinstance(test, ast.NamedExpr):
        return _is_about_truth(test.value)
    if isinstance(test, ast.Attribute):
        return test.attr == "ok" and _is_about_truth(test.value)
    return isinstance(test, ast.Name | ast.Call | ast.Subscript)


def _user_message(error: AssertionError, verdicts: Sequence[Any]) -> list[str]:
    """Return the user's message of `assert`, unless it is the verdict, which pytest truncates."""
    text = str(error)
    heads = [str(verdict).partition("\n")[0] for verdict in verdicts]
    if not text or text.startswith(("assert ", *heads)):
        return []
    return [text.partition("\nassert ")[0]]

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
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import pytest

from ._runtime.launch.place import process_number

MARKER = (
    "mesh(**axes): run the test on every mesh of these sizes, given to it as the fixture 'mesh': "
    "@pytest.mark.mesh(data=[1, 2, 4, 8], model=2)."
)


class _Nowhere(io.TextIOBase):
    """An output stream that discards everything, for processes that do not report."""

    def write(self, text: str, /) -> int:
        return len(text)


@pytest.hookimpl(trylast=True)  # after the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; silence the reports of all processes but the first."""
    config.addinivalue_line("markers", MARKER)
    if process_number() > 0 and config.pluginmanager.has_plugin("terminalreporter"):
        config.get_terminal_writer()._file = _Nowhere()  # pyright: ignore


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Any:
    """A virtual mesh, one for each combination of the sizes that `@pytest.mark.mesh` names."""
    if not hasattr(request, "param"):
        late = any(request.node.iter_markers("mesh"))
        why = ": a mark in pytest.param comes too late for it" if late else ""
        pytest.fail(
            f"{_place(request.node)}: the fixture 'mesh' does not know the sizes of its axes{why}."
            "\n  Remedy: @pytest.mark.mesh(data=[1, 2, 4, 8])" + " above the test" * late,
            pytrace=False,
        )
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
            _refuse_unused(_place(metafunc.definition))
    elif marks and not _has_its_own(metafunc.definition):
        _refuse_unheard(metafunc.definition)
        meshes = list(_combinations(_axes(marks, _place(metafunc.definition))))
        ids = ["-".join(f"{name}={size}" for name, size in one.items()) for one in meshes]
        metafunc.parametrize("mesh", meshes, ids=ids, indirect=True)


def _has_its_own(item: Any) -> bool:
    """Return whether the test takes a user-defined fixture `mesh` that already has params."""
    found = item._fixtureinfo.name2fixturedefs.get("mesh", ())
    return bool(found) and found[-1].params is not None


def _refuse_unheard(item: Any) -> None:
    """Fail if a mark names meshes for a user-defined fixture that does not take `request`."""
    found = item._fixtureinfo.name2fixturedefs.get("mesh", ())
    if not found or {"request", "mesh"} & {*found[-1].argnames}:
        return
    code = getattr(found[-1].func, "__code__", None)
    place = f" ({os.path.relpath(code.co_filename)}:{code.co_firstlineno})" if code else ""
    pytest.fail(
        f"{_place(item)}: @pytest.mark.mesh names meshes, and the fixture 'mesh' here{place} makes "
        "its own.\n"
        "  Remedy: take the mark away, or give the fixture what the mark names: "
        "def mesh(request): return sw.mesh(**request.param).",
        pytrace=False,
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
            _refuse_unused(_place(item))


TAKES = pytest.StashKey[set[str]]()
"""The tests that take a mesh, and the classes and modules that have such tests."""


def _axes(marks: Sequence[pytest.Mark], test: str) -> dict[str, list[int]]:
    """Return the sizes of each axis. The closest mark, which comes first, has precedence."""
    axes: dict[str, list[int]] = {}
    for mark in reversed(marks):
        if mark.args or not mark.kwargs:
            _refuse(test, f"mesh{mark.args!r} names no axes by keywords")
        for name, sizes in mark.kwargs.items():
            several = isinstance(sizes, list | tuple | range)
            column = list(sizes) if several else [sizes]
            if not column or not all(map(_is_size, column)):
                rule = "which are whole numbers from 1 on"
                _refuse(test, f"{name}={sizes!r} is not a size or a list of sizes, {rule}")
            # A repeated size is one mesh, and one test.
            axes[name] = list(dict.fromkeys(int(size) for size in column))
    return axes


def _is_size(given: Any) -> bool:
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    return whole and int(given) > 0


def _place(item: pytest.Item) -> str:
    """Return the name of a test and its first line, that of its decorators."""
    line = item.location[1]
    return f"{item.nodeid} (line {line + 1})" if line is not None else item.nodeid


def _refuse_unused(test: str) -> None:
    pytest.fail(
        f"{test}: @pytest.mark.mesh gives the test a mesh that it does not take.\n"
        "  Remedy: name it as an argument, def test_it(mesh), or take the mark away.",
        pytrace=False,
    )


def _refuse(test: str, what: str) -> None:
    pytest.fail(
        f"{test}: {what}.\n  Remedy: @pytest.mark.mesh(data=[1, 2, 4, 8], model=2)", pytrace=False
    )


def _combinations(axes: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    for sizes in itertools.product(*axes.values()):
        yield dict(zip(axes, sizes, strict=True))


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
    kept = getattr(item, "_excinfo", None)
    verdicts = _reword(kept[0] if kept else call.excinfo)
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and verdicts and verdicts[0].findings:
        crash.message = _summary(verdicts[0].findings[0])
    return report


def _reword(found: pytest.ExceptionInfo[BaseException] | None) -> list[Any]:
    """Write the verdicts that an `assert` tested into its message, and return them."""
    error = found.value if found else None
    if found is None or not isinstance(error, AssertionError):
        return []
    entry = found.traceback[-1]
    verdicts = _asserted(str(entry.statement), entry.frame.raw)
    if verdicts:
        error.args = ("\n\n".join([*_own_words(error, verdicts), *map(str, verdicts)]),)
    return verdicts


def _summary(finding: Any) -> str:
    where = finding.where
    place = f" {os.path.relpath(where.file)}:{where.line}" if where.file else ""
    return f"{finding.code}{place}: {finding.message}"


def _asserted(statement: str, frame: FrameType) -> list[Any]:
    """Return the wrong verdicts that an `assert` tested, and no other verdicts of the frame."""
    homes = {"shardwise._analysis.check": "Verdict", "shardwise._analysis.prove": "Proof"}
    kinds = tuple(getattr(sys.modules[m], name) for m, name in homes.items() if m in sys.modules)
    test = _test_of(statement)
    if not kinds or test is None or not _is_about_truth(test):
        return []
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    # pytest's rewritten assert keeps the values of calls in variables of these names.
    held = [
        value
        for name, value in frame.f_locals.items()
        if name in names or name.startswith("@py_assert")
    ]
    wrong = [value for value in held if isinstance(value, kinds) and not value.ok]
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


def _own_words(error: AssertionError, verdicts: Sequence[Any]) -> list[str]:
    """Return the user's message of `assert`, unless it is the verdict, which pytest truncates."""
    said = str(error)
    heads = [str(one).partition("\n")[0] for one in verdicts]
    if not said or said.startswith(("assert ", *heads)):
        return []
    return [said.partition("\nassert ")[0]]

"""`shardwise check`: what it finds, what it prints, how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardwise import Finding, ShardwiseError, Verdict
from shardwise import case as sw_case
from shardwise._analysis.check import underline
from shardwise._base import doing as _doing
from shardwise._cli import app, cases
from shardwise._cli.select import parse_expression, parse_mesh
from shardwise._cli.status import ExitCode
from shardwise._program import Where

PROGRAMS = """\
import jax
import jax.numpy as jnp
from jax import P

import shardwise as sw

print("imported")


def over(body, x, mesh):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def mean(x, *, mesh):
    return over(lambda x: jax.lax.pmean(x.mean(), "data"), x, mesh)


def summed(x, *, mesh):
    def per_device(x):
        return jax.lax.psum(x.mean(), "data")

    return over(per_device, x, mesh)


def again(x, *, mesh):
    return over(lambda x: jax.lax.pmax(jax.lax.pmax(x.max(), "data"), "data"), x, mesh)


@sw.case(mesh={"data": [1, 2]})
def right():
    return mean, (jnp.arange(8.0),)
"""
WRONG = """

@sw.case(mesh={"data": [1, 4]})
def wrong():
    return summed, (jnp.arange(8.0),)
"""
UNSURE = """

@sw.case(mesh={"data": [1, 2], "model": 2})
def unsure():
    return mean, (jnp.arange(8.0),)
"""
UNEVEN = """

@sw.case(mesh={"data": [1, 3]})
def uneven():
    return mean, (jnp.arange(8.0),)
"""
BROKEN = """

@sw.case(mesh={"data": 1})
def broken():
    return lambda x: {}["key"], (jnp.arange(8.0),)


@sw.case(mesh={"data": 1})
def no_arguments():
    return mean
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, *parts: str, name: str = "steps.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(parts), encoding="utf-8")
    return path


def run(*args: str, color: bool = False):
    env = {"COLUMNS": "100", "NO_COLOR": None, "FORCE_COLOR": "1" if color else None}
    return CliRunner().invoke(app, ["check", *args], prog_name="shardwise", env=env)


def line_of(path: Path, text: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_right_cases_end_with_0(here):
    write(here, PROGRAMS)
    result = run("steps.py")
    assert result.stdout == "steps.py:right: right on 2 meshes\n1 case, right\n"
    assert result.stderr == "imported\n"
    assert result.exit_code == ExitCode.OK


def test_a_wrong_case_ends_with_1_and_shows_the_line(here):
    path = write(here, PROGRAMS, WRONG)
    result = run("steps.py")
    line = line_of(path, "psum(x.mean()")
    assert result.exit_code == ExitCode.WRONG
    assert result.stdout.startswith(
        f"""\
steps.py:right: right on 2 meshes
steps.py:wrong: WRONG on 1 of 2 meshes

SW401: result is 4 times what it is on one device: it is summed over 'data', where each \
device's value is already a mean over its own part (on {{data: 4}})
  --> steps.py:{line}:16 in summed.<locals>.per_device
  {line - 1} |     def per_device(x):
  {line} |         return jax.lax.psum(x.mean(), "data")
     |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  Fix (proved): use pmean instead of psum
"""
    )
    assert result.stdout.endswith("\n2 cases, 1 wrong\n")


def test_the_page_shows_what_is_printed(here):
    page = (Path(__file__).parents[2] / "docs/check/index.md").read_text(encoding="utf-8")
    code, shown = re.findall(
        r"^```(?:python title=\"steps.py\"|console)\n(.*?)^```", page, re.M | re.S
    )[:2]
    write(here, code)
    assert f"$ shardwise check steps.py\n{run('steps.py').stdout}" == shown


def test_a_line_appears_on_a_terminal_once_it_takes_long(here, monkeypatch):
    write(here, PROGRAMS)
    monkeypatch.setattr(_doing, "PATIENCE", 0.0)
    monkeypatch.setattr(_doing, "_is_terminal", lambda stream: stream is sys.stderr)
    result = run("steps.py", color=True)
    assert "checking steps.py:right" in result.stderr
    assert "running on {data: 2}" in result.stderr
    assert "checking" not in result.stdout
    assert "1 case, right" in result.stdout


def test_verbose_names_the_meshes(here):
    write(here, PROGRAMS)
    result = run("-v", "steps.py")
    assert "right on {data: 1}, {data: 2} (1 result compared, " in result.stdout


def test_quiet_is_a_line_for_each_wrong_thing(here):
    path = write(here, PROGRAMS, WRONG, UNSURE, UNEVEN)
    result = run("-q", "steps.py")
    first, *rest = result.stdout.splitlines()
    assert first == (
        f"steps.py:{line_of(path, 'psum(x.mean()')}:16: SW401 result is 4 times what it is on "
        "one device: it is summed over 'data', where each device's value is already a mean over "
        "its own part (on {data: 4})"
    )
    assert "steps.py:uneven could not be run: ShardingError: " in rest[0]
    assert "SW204" not in result.stdout
    assert "cases" not in result.stdout


def test_quiet_and_right_says_nothing(here):
    write(here, PROGRAMS)
    assert run("-q", "steps.py").stdout == ""


def test_quiet_and_verbose_exclude_each_other(here):
    write(here, PROGRAMS)
    assert run("-q", "-v", "steps.py").exit_code == ExitCode.NOT_RUN


def test_what_may_be_right_is_shown_and_does_not_fail(here):
    write(here, PROGRAMS, UNSURE)
    result = run("steps.py:unsure")
    assert result.exit_code == ExitCode.OK
    assert "SW204 (may be right): " in result.stdout
    assert result.stdout.endswith("\n1 case, right, 1 warning\n")


def test_color_is_for_terminals_and_can_be_refused(here, monkeypatch):
    write(here, PROGRAMS, WRONG)
    assert "\x1b[" not in run("steps.py").stdout
    assert "\x1b[1;31m" in run("steps.py", color=True).stdout
    plain = CliRunner().invoke(
        app, ["check", "steps.py"], env={"NO_COLOR": "1", "FORCE_COLOR": "1"}
    )
    assert "31m" not in plain.stdout


def test_json(here):
    path = write(here, PROGRAMS, WRONG, UNEVEN)
    data = json.loads(run("--format", "json", "steps.py").stdout)
    assert (data["ok"], data["wrong"], data["not_run"]) == (False, 1, 1)
    right, wrong, uneven = data["cases"]
    assert right["verdict"]["ok"] is True
    assert right["error"] is None
    assert wrong["case"] == "wrong"
    assert wrong["file"] == str(path)
    assert wrong["line"] == line_of(path, "def wrong") - 1
    assert wrong["verdict"]["findings"][0]["code"] == "SW401"
    assert uneven["verdict"] is None
    assert uneven["error"]["type"] == "ShardingError"


def test_github(here):
    path = write(here, PROGRAMS, WRONG, UNSURE, UNEVEN)
    result = run("--format", "github", "steps.py")
    lines = result.stdout.splitlines()
    line = line_of(path, "psum(x.mean()")
    assert lines[0].startswith(
        f"::error file=steps.py,line={line},col=16,title=SW401::result is 4 times what it is"
    )
    assert "%0AFix (proved): use pmean instead of psum%0A--- " in lines[0]
    assert lines[0].endswith("%0ACase: steps.py:wrong")
    assert lines[1].startswith("::warning file=steps.py,line=")
    assert ",title=SW204::" in lines[1]
    declared = line_of(path, "def uneven") - 1
    assert lines[2].startswith(f"::error file=steps.py,line={declared},title=could not be run::")
    assert lines[3:] == ["4 cases, 1 wrong, 1 could not be run, 1 warning"]


def test_what_could_not_be_run_ends_with_2_and_says_which_case(here):
    path = write(here, PROGRAMS, UNEVEN, BROKEN)
    result = run("steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "steps.py:uneven: could not be run\n  ShardingError: " in result.stdout
    assert "dimension 0 of size 8 is split over mesh axis 'data' of size 3" in result.stdout
    line = line_of(path, '{}["key"]')
    told = f"  KeyError: 'key'\n  while tracing on {{data: 1}}\n  --> steps.py:{line}"
    assert f"steps.py:broken: could not be run\n{told}" in result.stdout
    assert "case 'no_arguments': it returns function." in result.stdout
    assert result.stdout.endswith("\n4 cases, 3 could not be run\n")
    assert "Traceback" not in result.stdout


def test_verbose_shows_the_traceback(here):
    write(here, PROGRAMS, BROKEN)
    assert "Traceback (most recent call last)" in run("-v", "steps.py:broken").stdout


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be"),
        ("def f(:", "SyntaxError: "),
        ("raise SystemExit(3)", "it ends the process (SystemExit: 3)"),
    ],
)
def test_a_file_that_cannot_be_imported(here, code, message):
    write(here, f'import shardwise as sw\nsw.case(mesh={{"data": 1}})\n{code}\n')
    for target in ("steps.py", "steps.py:name", "."):
        result = run(target)
        assert result.exit_code == ExitCode.NOT_RUN
        assert result.stdout.startswith("steps.py: could not be run\n")
        assert message in result.stdout


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "nowhere.py: there is no such file or folder."),
        ("steps.txt", "steps.txt: this is not a Python file."),
        ("steps.py:wright", "there is no case 'wright' in this file.\n  Remedy: did you mean 'ri"),
        ("steps.py:zzz", "there is no case 'zzz' in this file.\n  Remedy: name one of right."),
        ("empty.py", "empty.py: no cases found.\n  A case is a function that returns (f, args)"),
        ("empty", "empty: no cases found."),
    ],
)
def test_a_target_that_is_not_there(here, target, message):
    write(here, PROGRAMS)
    write(here, "", name="steps.txt")
    write(here, "import shardwise as sw\n", name="empty.py")
    (here / "empty").mkdir()
    result = run(target)
    assert result.exit_code == ExitCode.NOT_RUN
    assert message in result.stderr
    assert result.stdout == ""


def test_one_case_of_a_file(here):
    write(here, PROGRAMS, WRONG)
    for target in ("steps.py:right", "steps.py::right", str(here / "steps.py:right")):
        assert run(target).stdout == "steps.py:right: right on 2 meshes\n1 case, right\n"


def test_a_case_named_twice_runs_once(here):
    write(here, PROGRAMS)
    assert run("steps.py", "steps.py:right", ".").stdout.endswith("\n1 case, right\n")


def test_two_cases_of_one_name_are_told(here):
    code = PROGRAMS + WRONG.replace("def wrong", "def right")
    write(here, code)
    for target in ("steps.py", "steps.py:right"):
        result = run(target)
        assert result.exit_code == ExitCode.WRONG
        assert "two cases are named 'right', in lines" in result.stdout
        assert "give them two names" in result.stdout
        assert "2 cases, 1 wrong, 1 could not be run" in result.stdout


def test_a_file_that_is_imported_once_more_has_its_cases_once(here, monkeypatch):
    write(here, PROGRAMS)
    for _ in range(2):
        monkeypatch.delitem(sys.modules, "steps", raising=False)
        assert run("steps.py").exit_code == ExitCode.OK


@pytest.mark.parametrize(
    "around", ["class Steps:", "def make():", "for number in (1,):\n  class Steps:"]
)
def test_a_case_inside_something_is_told(here, around):
    _, declared = PROGRAMS.split("@sw.case", 1)
    declared = "@sw.case" + declared.replace("def right", "def inner")
    inside = "\n".join(f"    {line}" for line in declared.splitlines())
    write(here, f"{PROGRAMS}\n{around}\n{inside}\n" + "make()\n" * around.startswith("def"))
    result = run("steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "case 'inner' in line" in result.stdout
    assert "is inside a class or a function" in result.stdout
    assert "steps.py:right: right on 2 meshes" in result.stdout


def test_cases_of_functions_without_a_name_of_their_own_are_all_found(here):
    made = "one, two = (sw.case(mesh={'data': [1, 2]})(lambda: right()) for _ in range(2))\n"
    write(here, PROGRAMS + made)
    assert run("steps.py").stdout.endswith("\n3 cases, all right\n")


def test_a_file_that_only_imports_cases(here, monkeypatch):
    monkeypatch.delitem(sys.modules, "steps", raising=False)  # of the tests before
    write(here, PROGRAMS)
    (here / "others.py").write_text("from steps import right\nimport shardwise as sw\nsw.case\n")
    result = run("others.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "it only imports cases, which are declared in steps" in result.stderr


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("functools.partial(print, 1)", "it decorates a partial"),
        ("3", "it decorates an int"),
        ("sw.case(mesh={'data': 2})(print)", "it stands above another sw.case"),
    ],
)
def test_what_is_not_a_function_is_no_case(here, made, words):
    write(here, f"import functools\nimport shardwise as sw\nsw.case(mesh={{'data': 2}})({made})\n")
    result = run("steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert f"sw.case: {words}" in result.stdout


DECLARED_WRONGLY = """

@sw.case(mesh={"data": "2a"})
def no_size():
    return mean, (jnp.arange(8.0),)


@sw.case(mesh={"data": 2}, explain=3)
def no_function():
    return mean, (jnp.arange(8.0),)


@sw.case(mesh={"data": 2})
def takes(x):
    return mean, (x,)
"""


def test_a_case_that_is_declared_wrongly_takes_no_other_along(here):
    path = write(here, PROGRAMS, DECLARED_WRONGLY)
    result = run("steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "steps.py:right: right on 2 meshes" in result.stdout
    line = line_of(path, '"2a"')
    assert f"steps.py:{line}: sw.case: axis 'data' has size '2a'" in result.stdout
    assert 'Remedy: mesh={"data": "n"}, or mesh={"data": [1, 2, 4, 8]}' in result.stdout
    line = line_of(path, "explain=3")
    assert f"steps.py:{line}: sw.case: explain is int" in result.stdout
    line = line_of(path, "def takes") - 1
    assert f"steps.py:{line}: case 'takes': takes() cannot be called without" in result.stdout
    assert "Remedy: def takes(): return f, (x,)" in result.stdout
    assert result.stdout.endswith("4 cases, 3 could not be run\n")
    only = run("steps.py:no_function").stdout
    assert only.endswith("1 case, 1 could not be run\n")


def test_in_python_a_wrong_declaration_raises_at_its_line():
    with pytest.raises(ShardwiseError, match=r"^test_cli_check.py:\d+: sw.case: a mesh: axis"):
        sw_case(mesh={"data": ["2"]})


def test_a_case_without_parentheses(here):
    write(here, "import shardwise as sw\n@sw.case\ndef one(): pass\nsw.case()\n")
    result = run("steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "sw.case: it has no parentheses" in result.stdout
    with pytest.raises(ShardwiseError, match="it has no mesh"):
        sw_case()


def test_shapes_as_arguments(here):
    code = PROGRAMS.replace("(jnp.arange(8.0),)", '(jax.ShapeDtypeStruct((8,), "float32"),)')
    write(here, code)
    assert run("steps.py").stdout.startswith("steps.py:right: right on 2 meshes\n")


def test_what_could_not_be_seen_is_a_warning(here):
    write(here, PROGRAMS.replace("jnp.arange(8.0)", "jnp.ones(8)"))
    result = run("steps.py")
    assert result.exit_code == ExitCode.OK
    assert "passed a weak test on 2 meshes" in result.stdout
    assert "SW504: every device was given the same data" in result.stdout
    assert "1 case, right, 1 warning" in result.stdout


def test_a_folder(here):
    write(here, PROGRAMS, name="b/steps.py")
    write(here, PROGRAMS, name="a/steps.py")
    write(here, PROGRAMS, name=".hidden/steps.py")
    write(here, PROGRAMS, name="venv/lib/steps.py")
    write(here, "", name="venv/pyvenv.cfg")
    write(here, "raise AssertionError('imported')", name="other.py")
    write(here, "# shardwise case(\nraise AssertionError('imported')", name="comment.py")
    result = run(".")
    assert result.stdout.splitlines() == [
        "a/steps.py:right: right on 2 meshes",
        "b/steps.py:right: right on 2 meshes",
        "2 cases, all right",
    ]


def test_a_case_in_a_package_and_one_imported_from_it(here):
    name = f"package_{here.name.replace('-', '_')}"
    write(here, "", name=f"{name}/__init__.py")
    write(here, PROGRAMS, name=f"{name}/steps.py")
    imports = "from .steps import mean, right, jnp\nimport shardwise as sw\n"
    own = '@sw.case(mesh={"data": 2})\ndef own():\n    return mean, [jnp.arange(8.0)]\n'
    write(here, imports, own, name=f"{name}/more.py")
    path = sys.path[:]
    result = run(name)
    assert result.stdout.splitlines() == [
        f"{name}/more.py:own: right on {{data: 2}}",
        f"{name}/steps.py:right: right on 2 meshes",
        "2 cases, all right",
    ]
    assert sys.path == path


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import shardwise as sw\n@sw.case(mesh={})\ndef f(): ...", True),
        ("from shardwise import case as declare\n@declare(mesh={})\ndef f(): ...", True),
        ("import shardwise as sw\nTEXT = '@sw.case(mesh=1)'", False),
        ("import shardwise as sw\n# in this case (rare)", False),
        ("from other import case\n@case()\ndef f(): ...", False),
        ("import shardwise\ncase (", True),
    ],
)
def test_files_without_cases_are_told_by_their_text(tmp_path, code, found):
    assert cases.declares_cases(write(tmp_path, code)) is found


def test_select(here):
    write(here, PROGRAMS, WRONG, UNSURE)
    result = run("-k", "steps and not (wrong or unsure)", "steps.py")
    assert result.stdout.endswith("\n1 case, right\n")
    none = run("-k", "nothing", "steps.py")
    assert none.exit_code == ExitCode.NOT_RUN
    assert none.stderr.endswith(
        "ShardwiseError: -k 'nothing': no case matches.\n"
        "  Cases: steps.py:right, steps.py:wrong, steps.py:unsure.\n"
        "  Remedy: -k with a part of one of these names, such as -k right.\n"
    )


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("grad", ["grad", "Grad_slow"]),
        ("grad and not slow", ["grad"]),
        ("not grad", ["loss", "loss_slow"]),
        ("slow or loss", ["Grad_slow", "loss", "loss_slow"]),
        ("not (grad or slow)", ["loss"]),
        ("not not grad and slow", ["Grad_slow"]),
    ],
)
def test_expressions(expression, names):
    matches = parse_expression(expression)
    assert [n for n in ("grad", "Grad_slow", "loss", "loss_slow") if matches(n)] == names


@pytest.mark.parametrize("text", ["", "and", "grad and", "(grad", "grad)", "not", "a b", "()"])
def test_what_is_no_expression(text):
    with pytest.raises(ShardwiseError, match="this is not an expression"):
        parse_expression(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("data=8", {"data": [8]}),
        ("data=1,2,4,8,model=2", {"data": [1, 2, 4, 8], "model": [2]}),
        (" data = 1, 2 , model=3,4 ", {"data": [1, 2], "model": [3, 4]}),
    ],
)
def test_meshes(text, sizes):
    assert parse_mesh(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' comes before the name of an axis"),
        ("8", "'8' comes before the name of an axis"),
        ("data", "'data' comes before the name of an axis"),
        ("data=", "'' is not a size of axis 'data'"),
        ("data=1,", "'' is not a size of axis 'data'"),
        ("data=0", "'0' is not a size of axis 'data'"),
        ("data=-2", "'-2' is not a size of axis 'data'"),
        ("data=two", "'two' is not a size of axis 'data'"),
        ("data=1,model", "'model' is not a size of axis 'data'"),
        ("=2", "'' is not the name of an axis"),
        ("data=model=2", "'data=model' is not the name of an axis"),
        ("data=1,data=2", "axis 'data' is given twice"),
    ],
)
def test_what_is_no_mesh(here, text, message):
    result = run("--mesh", text, "steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert f"ShardingError: --mesh {text}: {message}\n" in result.stderr
    assert "Remedy: --mesh data=1,2,4,8,model=2" in result.stderr


def test_mesh_replaces_that_of_the_case(here):
    write(here, PROGRAMS)
    result = run("-v", "--mesh", "data=2,4,model=1", "steps.py")
    assert "right on {data: 2, model: 1}, {data: 4, model: 1} (" in result.stdout


OWN_MESH = """
import numpy as np
import jax
import jax.numpy as jnp
from jax import P
import shardwise as sw

DEVICES = np.array(jax.devices()).reshape(3)


def total(x, *, mesh):
    real = jax.sharding.Mesh(DEVICES[: mesh.size], ("data",))
    return jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), "data"), mesh=real, in_specs=P("data"), out_specs=P()
    )(x)


@sw.case(mesh={"data": [1, 3]})
def own_mesh():
    return total, (jnp.arange(6.0),)
"""


def test_devices_are_started_before_jax(here):
    write(here, OWN_MESH)
    code = "from shardwise._cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "check", "--devices", "3", "steps.py"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "JAX_NUM_CPU_DEVICES": "2",  # the option goes before it
        },
    )
    assert done.stdout == "steps.py:own_mesh: right on 2 meshes\n1 case, right\n", done.stderr
    assert done.returncode == 0


def test_devices_that_come_too_late(here, monkeypatch):
    import jax

    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    wanted = jax.device_count() + 1
    result = run("--devices", str(wanted), "steps.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert f"--devices {wanted}: JAX had started before, with" in result.stderr


@pytest.mark.parametrize(
    ("source", "columns", "marks"),
    [
        ("    y = psum(x)", (8, 15), "        ^^^^^^^"),
        ("    y = psum(", (8, 5), "        ^^^^^"),  # the call goes on below
        ("\ty = psum(x)", (5, 12), "\t    ^^^^^^^"),
        ("    é = psum(x)", (9, 16), "        ^^^^^^^"),  # columns count bytes
        ("    y = psum(x)", (0, 0), "    ^^^^^^^^^^^"),  # unknown
        ("    y = psum(x)", (90, 99), "    ^^^^^^^^^^^"),  # the file has changed since
    ],
)
def test_the_caret_is_under_the_call(tmp_path, source, columns, marks):
    path = write(tmp_path, source + "\n")
    where = Where(str(path), 1, "f", *columns)
    assert underline(where) == marks
    finding = Finding("SW109", "<it> is wrong", where)
    indent = len(source) - len(source.lstrip())
    assert f"    | {marks[indent:]}" in str(finding).splitlines()


def test_a_verdict_as_html(tmp_path):
    where = Where(str(write(tmp_path, "y = psum(x)\n")), 1, "f", 4, 11)
    sure = Finding("SW109", "<it> is wrong", where, remedy="mend it.")
    unsure = Finding("SW204", "it may be", where, remedy="mend it.", certain=False)
    shown = Verdict((sure, unsure), ("{data: 2}",), 1, "step")._repr_html_()
    assert "step: <b" in shown
    assert "wrong</b> on {data: 2}<" in shown
    assert "SW109: &lt;it&gt; is wrong" in shown
    assert "SW204 (may be right): it may be" in shown
    assert shown.count("Suggestion (not verified): mend it.") == 1
    assert shown.count("Remedy: as above.") == 1
    assert shown.count("<div") == shown.count("</div>") == 3

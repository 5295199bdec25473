"""Findings silenced where they stand: what a comment covers, what is counted, what is told."""

from __future__ import annotations

import json
import linecache

import pytest
from typer.testing import CliRunner

import shardwise as sw
from shardwise._analysis.faults.silence import ignores_in
from shardwise._cli import app
from shardwise._cli.cases import declaring
from shardwise._cli.status import ExitCode

PROGRAM = """\
import jax
import jax.numpy as jnp
from jax import P

import shardwise as sw


def summed(x, *, mesh):
    def per_device(x):
        return jax.lax.psum(x.mean(), "data"){at_line}

    return jax.shard_map(per_device, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


{at_case}
@sw.case(mesh={{"data": [1, 4]}})
def wrong():
    return summed, (jnp.{data},)
"""


def write(path, at_line="", at_case="", data="arange(8.0)"):
    path.write_text(PROGRAM.format(at_line=at_line, at_case=at_case, data=data))
    linecache.checkcache(str(path))
    return path


@pytest.fixture
def steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "steps.py"


def run(command, *args):
    env = {"COLUMNS": "100", "NO_COLOR": "1"}
    return CliRunner().invoke(app, [command, "steps.py", *args], prog_name="shardwise", env=env)


@pytest.mark.parametrize("command", ["check", "prove"])
def test_a_comment_at_the_line_silences_and_is_counted(steps, command):
    write(steps)
    assert run(command).exit_code == ExitCode.WRONG
    write(steps, "  # shardwise: ignore[SW401]")
    quiet = run(command)
    assert quiet.exit_code == ExitCode.OK, quiet.output
    assert "1 silenced: SW401" in quiet.stdout
    assert "Remedy" not in quiet.stdout
    assert quiet.stdout.splitlines()[-1] == "1 case, right, 1 silenced"


def test_the_verdict_does_not_call_it_right(steps):
    write(steps, "  # shardwise: ignore[SW401]")
    assert "steps.py:wrong: right but for what is silenced on 2 meshes" in run("check").stdout
    assert "steps.py:wrong: REFUTED on 1 of 2 meshes (1 silenced: SW401)" in run("prove").stdout


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("# shardwise: ignore[SW103]", "steps.py:10: the comment silences no SW103"),
        ("# shardwise: ignore[SW401, SW102]", "steps.py:10: the comment silences no SW102"),
        ("# shardwise: ignore[SW777]", "steps.py:10: there is no finding 'SW777' to ignore"),
        ("# shardwise: ignore[sw401]", "no finding 'sw401' to ignore; did you mean SW401?"),
        ("# shardwise: ignore", "steps.py:10: the comment names no code; name the code"),
        ("# shardwise: ignore[SW401, SW203]", "steps.py:10: the comment silences no SW203"),
    ],
)
def test_a_comment_that_silences_nothing_is_told(steps, comment, told):
    write(steps, f"  {comment}")
    result = run("check")
    assert told in result.stdout
    assert result.stdout.rstrip().endswith("1 comment without effect")
    github = run("check", "--format", "github").stdout
    assert "::warning file=steps.py,line=10,title=shardwise%3A ignore::" in github


def test_a_code_of_an_earlier_version_still_silences(steps):
    write(steps, "  # shardwise: ignore[SW101]")
    for command in ("check", "prove"):
        shown = run(command).stdout
        assert "1 silenced: SW401" in shown
        assert "without effect" not in shown
    write(steps)
    settings = steps.parent / "pyproject.toml"
    settings.write_text('[tool.shardwise]\nignore = ["SW101"]\n')
    assert "1 silenced: SW401" in run("check").stdout


def test_what_another_command_would_find_is_left_alone(steps):
    write(steps, "  # shardwise: ignore[SW401, SW409]")
    assert "without effect" not in run("check").stdout
    write(steps, "  # shardwise: ignore[SW401, SW201]")
    assert "without effect" not in run("prove").stdout


def test_one_case_alone_does_not_judge_the_comments(steps):
    write(steps, "  # shardwise: ignore[SW103]")
    whole = CliRunner().invoke(app, ["check", "steps.py:wrong"])
    assert "silences no" not in whole.stdout
    assert "silences no" not in run("check", "-k", "wrong").stdout


def test_a_finding_about_no_line_is_silenced_at_the_case(steps):
    write(steps, data="zeros(8)")
    assert "SW503" in run("check").stdout
    write(steps, data="zeros(8)", at_case="# shardwise: ignore[SW503]")
    quiet = run("check").stdout
    assert "1 silenced: SW503" in quiet
    assert "without effect" not in quiet


def test_json_and_sarif_keep_what_is_silenced(steps):
    write(steps, "  # shardwise: ignore[SW401]")
    data = json.loads(run("check", "--format", "json").stdout)
    assert (data["ok"], data["silenced"]) == (True, 1)
    assert [one["code"] for one in data["cases"][0]["verdict"]["silenced"]] == ["SW401"]
    (one,) = json.loads(run("check", "--format", "sarif").stdout)["runs"][0]["results"]
    assert one["ruleId"] == "SW401"
    assert one["suppressions"] == [{"kind": "inSource"}]


def test_in_python_as_well(steps, monkeypatch):
    write(steps, "  # shardwise: ignore[SW401]")
    scope: dict = {}
    exec(compile(steps.read_text(), str(steps), "exec"), scope)
    f, args = scope["wrong"]()
    verdict = sw.check(f, *args, mesh={"data": [1, 4]})
    assert verdict
    assert [finding.code for finding in verdict.silenced] == ["SW401"]
    assert "summed: right but for what is silenced on {data: 1}, {data: 4}" in str(verdict)
    assert "(1 silenced: SW401)" in verdict._repr_html_()


LAYOUTS = """\
x = f(
    1,
    2,
)  # shardwise: ignore[SW101]
# shardwise: ignore[SW102]
# because of this and that
y = g(1)
text = "# shardwise: ignore[SW103]"
def h(a):  # shardwise: ignore[SW104]
    return a
z = f(1)  # noqa: E501  # shardwise: ignore[SW105] # shardwise: ignore[SW106]
match z:  # shardwise: ignore[SW107]
    case 1:  # shardwise: ignore[SW108]
        y = 2
def outer():
    @decorated  # shardwise: ignore[SW109]
    def inner():
        return 1
"""


def test_a_comment_covers_its_statement_and_no_more(tmp_path):
    path = tmp_path / "layouts.py"
    path.write_text(LAYOUTS)
    found = {ignore.codes: ignore.covers for ignore in ignores_in(str(path))}
    assert found == {
        ("SW101",): range(1, 5),
        ("SW102",): range(7, 8),
        ("SW104",): range(9, 10),
        ("SW105",): range(11, 12),
        ("SW106",): range(11, 12),
        ("SW107",): range(12, 13),
        ("SW108",): range(13, 14),
        ("SW109",): range(16, 18),
    }


TWO = """\
import jax
import jax.numpy as jnp
from jax import P, lax

import shardwise as sw


def two(key, x, table, rows, *, mesh):
    def per_device(key, x, table, rows):
        here = rows - lax.axis_index("data") * len(table)
        found = (here >= 0) & (here {most} len(table))
        looked_up = jnp.where(found[:, None], table[jnp.clip(here, 0, len(table) - 1)], 0)
        noise = jax.random.normal(key, x.shape)
        scale = {scale} if lax.axis_size("data") == 2 else 1
        return lax.{mean}(x.mean() * scale, "data"), x + noise, lax.psum(looked_up, "data")

    specs = {{"in_specs": (P(), P("data"), P("data"), P()), "out_specs": (P(), P("data"), P())}}
    return jax.shard_map(per_device, mesh=mesh, **specs)(key, x, table, rows)


@sw.case(mesh={{"data": [1, 2, 4]}})
def case():
    table = jnp.sin(jnp.arange(64.0)).reshape(16, 4)
    return two, (jax.random.key(0), jnp.arange(1.0, 17.0), table, jnp.arange(16))
"""


@pytest.mark.parametrize(
    ("program", "ignored", "left", "wrong_on"),
    [
        ({"most": "<=", "scale": 1, "mean": "psum"}, ["SW106", "SW401"], "SW109", (2, 4)),
        ({"most": "<", "scale": 3, "mean": "pmean"}, ["SW106"], "SW401", (2,)),
    ],
    ids=["which it might explain", "on another mesh"],
)
def test_a_setting_silences_no_other_mistake(steps, program, ignored, left, wrong_on):
    settings = steps.with_name("pyproject.toml")
    settings.write_text(f"[tool.shardwise]\nignore = {ignored}\n")
    steps.write_text(TWO.format(**program))
    told = json.loads(run("check", "--format", "json").stdout)["cases"][0]["verdict"]
    assert [one["code"] for one in told["findings"]] == [left]
    assert {one["code"] for one in told["silenced"]} == {*ignored}
    assert told["wrong_on"] == [f"{{data: {n}}}" for n in wrong_on]


# --- which files of a folder declare cases

DECLARED = {
    "called": "import shardwise as sw\n@sw.case(mesh={'data': [1, 2]})\ndef one(): return F, X\n",
    "bare": "import shardwise as sw\n@sw.case\ndef one(): return F, X\n",
    "alias": "import shardwise\nc = shardwise.case\n@c(mesh={'d': 2})\ndef one(): return F, X\n",
    "named": "from shardwise import case as c\n@c(mesh={'data': [1, 2]})\ndef one(): return F, X\n",
    "partial": "import functools, shardwise as sw\n"
    "case = functools.partial(sw.case, mesh={'data': [1, 2]})\n",
    "shared": "from partial import case\n@case()\ndef one(): return F, X\n",
    "relative": "from .partial import case\n@case()\ndef one(): return F, X\n",
    "renamed": "from partial import case as split\n@split()\ndef one(): return F, X\n",
    "module": "import partial\n@partial.case()\ndef one(): return F, X\n",
    "star": "from partial import *\n@case()\ndef one(): return F, X\n",
    "further": "from renamed import split\n@split()\ndef one(): return F, X\n",
}
OTHERS = {
    "statement": "import shardwise\nmatch shardwise:\n    case 3: pass\n",
    "elsewhere": "from pytest_cases import case\n@case()\ndef one(): return 3\n",
    "user": "from partial import case\nprint(case)\n",
    "foreign": "import other\n@other.case()\ndef one(): return 3\n",
}


@pytest.mark.parametrize("name", [*DECLARED, *OTHERS])
def test_files_that_declare_cases(tmp_path, name):
    for other, text in {**DECLARED, **OTHERS}.items():
        (tmp_path / f"{other}.py").write_text(text)
    found = declaring(sorted(tmp_path.glob("*.py")))
    assert (tmp_path / f"{name}.py" in found) == (name in DECLARED)

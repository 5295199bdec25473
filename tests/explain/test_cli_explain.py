"""`shardwise explain`, run in this process."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from shardwise._cli import app
from shardwise._cli.status import ExitCode

CASES = """
import jax
import jax.numpy as jnp
from jax import P, lax
import shardwise as sw

def step(x, *, mesh):
    body = lambda x: lax.psum(x, "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

@sw.case(mesh={"data": [1, 2, 4]})
def total():
    return step, (jnp.ones(16),)
"""
SECOND = """
@sw.case(mesh={"data": 8})
def second():
    print("made")
    return step, (jnp.ones(64),)
"""
BROKEN = """
@sw.case(mesh={"data": 3})
def broken():
    return step, (jnp.ones(16),)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, ["explain", *map(str, args)], prog_name="shardwise")


def write(folder, *parts, name="steps.py"):
    (folder / name).write_text("".join(parts))


def test_text_on_the_largest_mesh_of_the_case(here):
    write(here, CASES)
    result = run("steps.py:total")
    assert result.exit_code == ExitCode.OK, result.output
    assert result.stdout.startswith("step on {data: 4}, 4 devices\n")
    assert 'body = lambda x: lax.psum(x, "data")' in result.stdout


def test_another_mesh_and_a_machine(here):
    write(here, CASES)
    result = run("steps.py", "--mesh", "data=16", "--hardware", "h200-node")
    assert "step on {data: 16}, 16 devices" in result.stdout
    assert "Cost on h200-node, by a model" in result.stdout


def test_two_meshes_side_by_side(here):
    write(here, CASES)
    result = run("steps.py", "--mesh", "data=2", "--against", "data=16")
    assert "before: step on {data: 2}" in result.stdout
    assert "after:  step on {data: 16}" in result.stdout


def test_json_of_several_cases(here):
    write(here, CASES, SECOND, BROKEN)
    result = run("steps.py", "--format", "json")
    assert result.exit_code == ExitCode.NOT_RUN
    first, second, broken = json.loads(result.stdout)
    assert [one["case"] for one in (first, second, broken)] == ["total", "second", "broken"]
    assert first["report"]["collectives"][0]["bytes_sent"] == 24
    assert second["report"]["devices"] == 8
    assert broken["report"] is None
    assert broken["error"]["type"] == "ShardingError"
    assert "made" in result.stderr


def test_a_comparison_as_json(here):
    write(here, CASES)
    (one,) = json.loads(run("steps.py", "--against", "data=8", "--format", "json").stdout)
    assert one["comparison"]["changes"][0]["after"] == 8


def test_what_cannot_be_explained_says_why(here):
    write(here, CASES, BROKEN)
    result = run("steps.py:broken")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "steps.py:broken: could not be run" in result.stdout
    assert "the nearest sizes that work are 15 or 18" in result.stdout


def test_a_trace(here):
    write(here, CASES)
    assert run("steps.py", "--trace", "out.json").exit_code == ExitCode.OK
    data = json.loads((here / "out.json").read_text())
    assert any(event["name"] == "psum over data" for event in data["traceEvents"])


def test_a_page(here):
    write(here, CASES)
    assert run("steps.py", "--html", "out.htm").exit_code == ExitCode.OK
    assert "lax.psum(x, &quot;data&quot;)" in (here / "out.htm").read_text().replace(
        "&#34;", "&quot;"
    )


WRONG = """
import jax
import jax.numpy as jnp
from jax import P, lax
import shardwise as sw

def step(w, x, *, mesh):
    def body(w, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return lax.pmean(grads, "data")

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

@sw.case(mesh={"data": [1, 4]})
def textbook():
    return step, (jnp.ones((8, 8)), jnp.ones((16, 8)))
"""


def test_a_page_says_where_it_comes_from_and_what_a_proof_found(here, monkeypatch):
    write(here, WRONG)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    result = run("steps.py:textbook", "--hardware", "h200-node", "--html", "out.html")
    assert result.exit_code == ExitCode.OK, result.output
    page = (here / "out.html").read_text()
    head = page.partition("<main>")[0]
    command = "shardwise explain steps.py:textbook --hardware h200-node --html out.html"
    assert f"<code>$ {command}</code>" in head
    assert ">2023-11-14 22:13 UTC</time>" in head
    assert ">steps.py:7</code>" in head
    assert "<h2>Findings</h2>" in page
    assert "is 4 times what it is on one device" in page
    line = page.partition('<details class="sw-collective"')[2]
    assert '<b class="sw-mark">SW401</b>' in line
    assert '<b class="sw-mark">redundant</b>' in line
    data = json.loads(run("steps.py:textbook", "--format", "json").stdout)
    assert data[0]["report"]["command"] == "shardwise explain steps.py:textbook"
    assert data[0]["report"]["redundant_bytes"] == 384


def test_a_right_program_has_no_findings(here):
    write(here, CASES)
    run("steps.py", "--html", "out.html")
    page = (here / "out.html").read_text()
    assert "<h2>Findings</h2>" not in page
    assert "Redundant traffic" not in page
    assert "Sent for nothing" not in page


def test_a_file_holds_one_case(here):
    write(here, CASES, SECOND)
    result = run("steps.py", "--trace", "out.json")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "there are 2 cases: steps.py:total, steps.py:second" in result.stderr
    assert "shardwise explain steps.py:total" in result.stderr
    assert not (here / "out.json").exists()


def test_one_size_for_each_axis(here):
    write(here, CASES)
    result = run("steps.py", "--mesh", "data=2,4")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "--mesh data=2,4: axis 'data' has 2 sizes" in result.stderr


def test_a_mesh_that_is_none_names_its_option(here):
    write(here, CASES)
    assert "--against data: " in run("steps.py", "--against", "data").stderr


def test_an_unknown_machine(here):
    write(here, CASES)
    result = run("steps.py", "--hardware", "h300")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "there is no profile 'h300'" in result.stdout


def test_a_file_without_cases(here):
    (here / "empty.py").write_text("x = 1\n")
    result = run("empty.py")
    assert result.exit_code == ExitCode.NOT_RUN
    assert "no cases found" in result.stderr

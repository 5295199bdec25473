"""Budgets: what a program may send and hold, in a test, on the command line and in a project."""

from __future__ import annotations

import json

import pytest
from jax import P, lax
from typer.testing import CliRunner

import shardwise as sw
from shardwise._cli import app
from shardwise._cli.status import ExitCode

from .support import explained, shaped


@pytest.fixture
def report():
    """On four devices: 128 bytes are gathered, then 256 summed in each of three iterations."""

    def body(x):
        whole = lax.all_gather(x, "data", tiled=True)
        add = lambda total, _: (lax.psum(total * whole, "data"), None)  # noqa: E731
        return lax.scan(add, whole, None, length=3)[0]

    return explained(body, shaped(64), out_specs=P(), check_vma=False)


def test_what_is_within_its_budget_is_returned(report):
    assert report.expect(bytes_sent=report.bytes_sent, all_gather=1, psum=3) is report
    assert report.expect(bytes_sent={"data": 1e6}, peak_memory=1e9, collectives=4) is report
    assert report.expect(all_to_all=0, ppermute={"data": 0}) is report


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"all_gather": 0}, r"the number of all_gather is 1, and at most 0 is expected"),
        ({"psum": {"data": 2}}, r"the number of psum over data is 3, and at most 2"),
        ({"bytes_sent": 100}, r"bytes sent is 1\.34 kB, and at most 100 B is expected"),
        ({"bytes_sent": {"data": 0}}, r"bytes sent over data is 1\.34 kB"),
        ({"peak_memory": 64}, r"peak memory is .* and at most 64 B is expected"),
        ({"collectives": 3}, r"the number of collectives is 4"),
    ],
)
def test_what_exceeds_it_is_an_error_with_the_rows(report, bounds, says):
    with pytest.raises(AssertionError, match=says) as caught:
        report.expect(**bounds)
    if "peak_memory" not in bounds:
        assert "test_budget.py:" in str(caught.value)
        assert "over data, f32[" in str(caught.value)


def test_the_rows_of_the_budget_are_those_that_count(report):
    with pytest.raises(sw.ShardwiseError) as caught:
        report.expect(psum=0)
    assert "f32[64] × 3, 1.15 kB" in str(caught.value)
    assert "all_gather" not in str(caught.value)


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        ({"allgather": 0}, "did you mean 'all_gather'"),
        ({"psum": {"model": 1}}, "The mesh has data"),
        ({"psum": -1}, "A bound is a number, at least 0"),
        ({"psum": "few"}, "A bound is a number, at least 0"),
        ({"bytes_sent": float("nan")}, "A bound is a number, at least 0"),
    ],
)
def test_a_bound_that_is_none(report, bounds, says):
    with pytest.raises(sw.ShardwiseError, match=says):
        report.expect(**bounds)


CASES = """
import jax
import jax.numpy as jnp
from jax import P, lax
import shardwise as sw

def step(w, x):
    return (x @ w).sum()

@sw.case(mesh={"data": 4}, in_specs=(P("data"), P("data")))
def gathers():
    return step, (jnp.ones((64, 64)), jnp.ones((1024, 64)))
"""


def run(*args):
    return CliRunner().invoke(app, ["explain", *args], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "cases.py").write_text(CASES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_on_the_command_line(folder):
    within = run("cases.py", "--expect", "bytes_sent.data=1e6,all_gather=1")
    assert within.exit_code == ExitCode.OK, within.output
    over = run("cases.py", "--expect", "all_gather=0", "--expect", "bytes_sent=1e3")
    assert over.exit_code == ExitCode.WRONG
    assert "OVER BUDGET: the number of all_gather is 1" in over.stdout
    assert "all_gather over data of w, f32[16, 64]" in over.stdout
    assert "cases.py:8" in over.stdout
    none = run("cases.py", "--expect", "all_gather")
    assert none.exit_code == ExitCode.NOT_RUN


def test_in_the_settings_of_a_project(folder):
    settings = folder / "pyproject.toml"
    settings.write_text("[tool.shardwise]\nexpect = {all_gather = 0}\n")
    assert run("cases.py").exit_code == ExitCode.WRONG
    assert run("cases.py", "--expect", "all_gather=5").exit_code == ExitCode.OK
    settings.write_text("[tool.shardwise]\nexpect = {all_gather = 'none'}\n")
    result = run("cases.py")
    assert result.exit_code == ExitCode.NOT_RUN


def test_against_an_earlier_report(folder):
    saved = run("cases.py", "--format", "json")
    assert saved.exit_code == ExitCode.OK
    old = folder / "old.json"
    old.write_text(json.dumps(json.loads(saved.stdout)))
    same = run("cases.py", "--against", "old.json")
    assert "The same collectives from the same lines." in same.stdout
    line = "w = w + lax.top_k(x, 1)[0].max()"
    (folder / "later").mkdir()
    changed = CASES.replace("def step(w, x):", f"def step(w, x):\n    {line}")
    (folder / "later" / "cases.py").write_text(changed)
    result = run("later/cases.py", "--against", "old.json")
    assert result.exit_code == ExitCode.OK, result.output
    assert "+ pmax over data" in result.stdout
    assert line in result.stdout
    missing = run("cases.py", "--against", "none.json")
    assert missing.exit_code == ExitCode.NOT_RUN
    assert "it cannot be read" in missing.output

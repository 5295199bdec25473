"""On which meshes check runs a program, and what it says of those on which it does not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from typer.testing import CliRunner

from shardwise._analysis.lift import cache, run
from shardwise._cli import app
from tests.support import check

MESH = {"data": [1, 2, 4, 8]}
SHORT = 32


@pytest.fixture(autouse=True)
def few_operations_are_many(monkeypatch):
    """Let a program be long with fewer operations, which compile sooner."""
    monkeypatch.setattr(run, "SHORT", SHORT)


def mapped(body):
    def f(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

    return f


def trace_of(f, *args, **options):
    said: list[str] = []
    verdict = check(f, *args, mesh=MESH, progress=said.append, **options)
    return verdict, [what for what in said if what.startswith("running")]


def long(x):
    """More operations than a short program has, each without an effect on the mistake."""
    for _ in range(SHORT // 2):
        x = x + 0.01 * jnp.cos(x)
    return x


def wrong(x):
    # The middle of each device's own rows, which is no multiple of anything.
    return jax.lax.pmean(jnp.sort(long(x))[x.size // 2], "data")


X = np.random.default_rng(0).normal(size=16).astype(np.float32)


def test_a_proved_program_runs_on_one_device_and_on_the_largest_mesh():
    verdict, ran = trace_of(mapped(lambda x: jax.lax.psum(long(x).sum(), "data")), X)
    assert verdict
    assert len(verdict.proved_on) == 4
    assert verdict.not_run == ()
    assert ran == ["running on {data: 1}", "running on {data: 8}"]


def test_where_the_largest_is_wrong_the_others_are_confirmed_by_meaning():
    verdict, ran = trace_of(mapped(lambda x: jax.lax.psum(x.mean(), "data")), X)
    assert verdict.wrong_on == ("{data: 2}", "{data: 4}", "{data: 8}")
    assert ran == ["running on {data: 1}", "running on {data: 8}"]


def test_a_long_wrong_program_is_not_run_on_every_mesh_unless_asked():
    verdict, ran = trace_of(mapped(wrong), X)
    assert verdict.not_run == ("{data: 2}", "{data: 4}")
    assert verdict.wrong_on == ("{data: 8}",)
    assert verdict.right_on == ("{data: 1}",)
    assert "running on {data: 4}" not in ran
    assert "; not run on {data: 2}, {data: 4}" in str(verdict)
    assert verdict.to_dict()["not_run"] == ["{data: 2}", "{data: 4}"]
    every, ran = trace_of(mapped(wrong), X, all_meshes=True)
    assert every.not_run == ()
    assert every.wrong_on == ("{data: 2}", "{data: 4}", "{data: 8}")
    assert "running on {data: 4}" in ran


def test_a_short_wrong_program_is_run_on_every_mesh_that_meaning_does_not_know():
    middle = mapped(lambda x: jax.lax.pmean(jnp.sort(x)[x.size // 2], "data"))
    verdict, _ = trace_of(middle, X)
    assert verdict.not_run == ()
    assert verdict.wrong_on == ("{data: 2}", "{data: 4}", "{data: 8}")


def test_a_program_that_is_right_on_the_largest_mesh_is_run_on_the_others():
    def on_four(x):
        return jax.lax.psum(jnp.sort(x).sum() * (2.0 if x.size == 4 else 1.0), "data")

    verdict, ran = trace_of(mapped(on_four), X)
    assert verdict.wrong_on == ("{data: 4}",)
    assert ran[1] == "running on {data: 8}"
    assert "running on {data: 4}" in ran


CASES = """
import jax, jax.numpy as jnp
import shardwise as sw
from jax import P

def f(x, *, mesh):
    body = lambda x: jax.lax.pmean({body}, "data")
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)

def long(x):
    for _ in range({half}):
        x = x + 0.01 * jnp.cos(x)
    return x

@sw.case(mesh={{"data": [1, 2, 4, 8]}})
def first():
    return f, (jnp.sin(jnp.arange(16.0)),)

@sw.case(mesh={{"data": [1, 2, 4, 8]}})
def second():
    return f, (jnp.cos(jnp.arange(16.0)),)
"""


@pytest.mark.parametrize("way", ["flag", "setting", "neither"])
def test_all_meshes_on_the_command_line(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(
        CASES.format(body="jnp.sort(long(x))[x.size // 2]", half=SHORT // 2)
    )
    if way == "setting":
        (tmp_path / "pyproject.toml").write_text("[tool.shardwise]\nall_meshes = true\n")
    flags = ["--all-meshes"] * (way == "flag")
    result = CliRunner().invoke(app, ["check", "steps.py:first", "-v", "--no-fix", *flags])
    assert result.exit_code == 1, result.output
    assert ("not run on {data: 2}, {data: 4}" in result.stdout) is (way == "neither")


def test_a_setting_that_is_no_switch_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.shardwise]\nall_meshes = "yes"\n')
    result = CliRunner().invoke(app, ["check", "."])
    assert result.exit_code == 2
    assert "all_meshes is 'yes'" in result.output + str(result.stderr)


def test_cases_of_one_command_share_compiled_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.py").write_text(CASES.format(body="(x * 3.25).mean()", half=SHORT // 2))
    compiled: list[int] = []
    monkeypatch.setattr(cache, "_kept", _Counting(compiled))
    assert CliRunner().invoke(app, ["check", "steps.py"]).exit_code == 0
    assert len(compiled) == 4  # once on each mesh, for both cases


class _Counting(cache._kept.__class__):
    def __init__(self, added):
        super().__init__()
        self.added = added

    def __setitem__(self, key, value):
        self.added.append(key)
        super().__setitem__(key, value)


def test_a_wrong_program_of_many_layers_is_judged_in_seconds():
    """What a term is made of is shared: to follow each way through it takes for ever."""

    def loss(params, x):
        for w in params:
            x = x + jnp.tanh(x @ w) @ w.T
        return jnp.mean(x**2)

    def step(params, x, *, mesh):
        def body(params, x):
            return jax.lax.pmean(jax.grad(loss)(params, x), "data")

        specs = (P(), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, x)

    rng = np.random.default_rng(0)
    params = [rng.normal(size=(4, 4)).astype(np.float32) * 0.3 for _ in range(40)]
    x = rng.normal(size=(8, 4)).astype(np.float32)
    verdict = check(step, params, x, mesh={"data": [1, 2]})
    assert verdict.findings[0].code == "SW401"

"""Programs that JAX rejects on several devices: a fix where one is found, else the error."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw

MESH = {"data": [1, 2, 4]}
X = np.arange(16, dtype=np.float32).reshape(2, 8)


def clashes(x, b, *, mesh):
    shard = jax.shard_map(
        lambda x: 2 * x, mesh=mesh, in_specs=P(None, "data"), out_specs=P(), check_vma=False
    )
    return jnp.add(shard(x), b)


def is_not_reduced(x, *, mesh):
    def body(x):
        return jnp.sum(x**2)

    return jax.shard_map(body, mesh=mesh, in_specs=P(None, "data"), out_specs=P())(x)


def compiled(f):
    return functools.partial(jax.jit, static_argnames="mesh")(f)


def fix_of(verdict):
    (finding,) = verdict.findings
    assert finding.code == "SW206"
    assert finding.fix.verified == "proved"
    return [line[1:].strip() for line in finding.fix.diff.splitlines() if line.startswith("+ ")]


@pytest.mark.parametrize("f", [clashes, compiled(clashes)], ids=["plain", "jit"])
def test_out_specs_behind_which_shapes_clash_are_fixed(f):
    verdict = sw.check(f, X, X, mesh=MESH)
    assert verdict.wrong_on == ("{data: 2}", "{data: 4}")
    (line,) = fix_of(verdict)
    assert 'out_specs=P(None, "data")' in line
    assert "result 0 of this shard_map has shape (2, 4), and (2, 8)" in verdict.findings[0].message


@pytest.mark.parametrize("f", [is_not_reduced, compiled(is_not_reduced)], ids=["plain", "jit"])
def test_a_result_that_may_differ_is_reduced(f):
    verdict = sw.check(f, X, mesh=MESH)
    assert verdict.wrong_on == verdict.meshes
    assert fix_of(verdict) == ['return jax.lax.psum(jnp.sum(x**2), "data")']


def test_two_axes_of_one_size_are_told_apart():
    def program(x, b, *, mesh):
        shard = jax.shard_map(
            lambda x: 2 * x, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data")
        , check_vma=False)  # fmt: skip
        return jnp.add(shard(x), b)

    x = np.ones((8, 8), np.float32)
    verdict = sw.check(program, x, x, mesh={"data": [1, 2], "model": [1, 2]})
    (line,) = fix_of(verdict)
    assert 'out_specs=P("data", "model")' in line


def test_the_program_is_rejected_as_before_afterwards():
    """What JAX has cached of the program without its check is not found by the program itself."""
    f = compiled(is_not_reduced)
    for _ in range(2):
        assert sw.check(f, X, mesh=MESH).findings[0].code == "SW206"
        with pytest.raises(sw.ShardingError, match="may differ between devices"):
            sw.simulate(f, mesh={"data": 2})(X)


def test_without_a_fix_the_error_is_raised():
    with pytest.raises(sw.ShardingError, match="may differ between devices"):
        sw.check(is_not_reduced, X, mesh=MESH, fix=False)
    exec_made = {}
    source = "def f(x, *, mesh):\n    return shard_map(lambda x: x.sum(), mesh=mesh, "
    source += "in_specs=P(None, 'data'), out_specs=P())(x)\n"
    exec(source, {"shard_map": jax.shard_map, "P": P}, exec_made)
    with pytest.raises(sw.ShardingError, match="may differ between devices"):
        sw.check(exec_made["f"], X, mesh=MESH)


def test_it_can_be_silenced():
    def total(x, *, mesh):
        def body(x):
            return jnp.sum(x**2)  # shardwise: ignore[SW206]

        return jax.shard_map(body, mesh=mesh, in_specs=P(None, "data"), out_specs=P())(x)

    verdict = sw.check(total, X, mesh=MESH)
    assert verdict.ok
    assert [finding.code for finding in verdict.silenced] == ["SW206"]

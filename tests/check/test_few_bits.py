"""Types with few bits or none: float8, float4, and the tangents of whole numbers."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from tests.support import check

MESH = {"data": [1, 2, 4]}
FEW = ["float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e3m4", "float4_e2m1fn"]


def mean(dtype, reduce, into=jnp.float32):
    def f(x, *, mesh):
        def body(x):
            return reduce(x.astype(dtype).astype(jnp.float32).mean(0), "data").astype(into)

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    return f


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("dtype", FEW)
def test_a_multiple_is_seen_in_few_numbers_of_few_bits(dtype, width):
    """They nearly cancel, so that rounding may double them; and yet they are four times as many."""
    for seed in range(3 if width == 1 else 1):
        x = jax.random.normal(jax.random.key(seed), (16, width)) * 3
        assert check(mean(dtype, lax.pmean), x, mesh=MESH)
        wrong = check(mean(dtype, lax.psum), x, mesh=MESH)
        assert wrong.wrong_on == ("{data: 2}", "{data: 4}")


@pytest.mark.parametrize("dtype", FEW)
def test_results_of_few_bits(dtype):
    x = jax.random.normal(jax.random.key(0), (16, 40)) * 3
    assert check(mean(dtype, lax.pmean, into=dtype), x, mesh=MESH)
    assert not check(mean(dtype, lax.psum, into=dtype), x, mesh=MESH)


def gradients(reduce):
    def f(params, x, *, mesh):
        def loss(params):
            body = lambda p, x: reduce((p["w"] * x).mean(), "data")  # noqa: E731
            specs = {"in_specs": (P(), P("data")), "out_specs": P()}
            return jax.shard_map(body, mesh=mesh, **specs)(params, x)

        return jax.grad(loss, allow_int=True)(params)

    return f


PARAMS = {"w": jnp.float32(2), "steps": jnp.arange(3)}
X = jnp.arange(1.0, 9.0)


def test_tangents_of_whole_numbers_are_results_like_others():
    right, wrong = gradients(lax.pmean), gradients(lax.psum)
    alone = sw.simulate(right, mesh=sw.mesh(data=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check(right, PARAMS, X, mesh=MESH)
        assert check(right, PARAMS, X, mesh=MESH, reference=alone)
        assert not check(wrong, PARAMS, X, mesh=MESH, reference=alone)
        (finding,) = check(wrong, PARAMS, X, mesh=MESH).findings
        assert sw.prove(right, PARAMS, X, mesh=MESH)
        assert "REFUTED" in str(sw.prove(wrong, PARAMS, X, mesh=MESH))
    assert finding.leaf == "result['w']"
    assert alone(PARAMS, X)["steps"].dtype == jax.dtypes.float0


def test_tangents_of_whole_numbers_are_shown():
    text = str(sw.inspect(gradients(lax.pmean), PARAMS, X, mesh=sw.mesh(data=2)))
    assert "f0[3]" in text
    assert "f0[3]" in str(sw.explain(gradients(lax.pmean), PARAMS, X, mesh=sw.mesh(data=2)))

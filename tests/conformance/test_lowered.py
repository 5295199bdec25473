"""What the lowered program consists of: no more than it needs, and no clock is looked at."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise import _jax
from shardwise._program import Leaf, Var

from ..support import real_mesh

RING = [(i, (i + 1) % 4) for i in range(4)]


def sharded(body):
    return jax.shard_map(body, mesh=real_mesh(x=4), in_specs=P("x"), out_specs=P("x"))


def chain(x):
    for k in range(6):
        x = x + lax.ppermute(x, "x", RING) * (1.0 / (k + 1))
    return x


def numbers_beside_numbers(x):
    """Numbers that differ beside such that do not, in operations that want one shape."""
    own, at = x[0, 0], lax.axis_index("x")
    chosen = lax.select(at > 1, own, jnp.float32(3.0))
    bounded = lax.clamp(jnp.float32(-1.0), chosen, lax.convert_element_type(at, jnp.float32))
    total = lax.psum(bounded, "x")
    return jnp.where(at % 2 == 0, x * total, lax.ppermute(x, "x", RING).T.reshape(x.shape) + own)


@pytest.mark.parametrize("body", [chain, numbers_beside_numbers])
def test_a_stage_without_a_loop_is_what_devices_do(body):
    f, x = sharded(body), jnp.arange(32.0).reshape(8, 4) / 7
    np.testing.assert_allclose(sw.simulate(f)(x), jax.jit(f)(x), rtol=1e-6)


def test_what_is_done_element_by_element_needs_no_loop():
    text = jax.jit(sw.simulate(sharded(chain))).lower(jnp.ones((8, 4))).as_text()
    assert "stablehlo.while" not in text
    assert text.count('"stablehlo.gather"(') == 6


def test_what_would_take_memory_for_all_devices_is_looped_over():
    def body(x):
        wide = jnp.tanh(jnp.broadcast_to(x[:, None], (2, 4096, 256)))
        return lax.psum((wide * wide + jnp.exp(wide))[:, 0], "x") + x

    lowered = jax.jit(sw.simulate(sharded(body))).lower(jnp.ones((8, 256)))
    assert "stablehlo.while" in lowered.as_text()


def test_an_operation_that_was_given_another_function_runs_it():
    var = Var((), jnp.dtype("float32"))
    op = Leaf([var], [var], "neg", _jax.applying(lax.neg_p, {}, ()))
    assert op.primitive is lax.neg_p
    assert dataclasses.replace(op, run=lambda x: [x]).primitive is None

"""Parts that are accumulated are looped over: XLA is to be as fast at convolutions there."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax

import shardwise as sw

from ..support import assert_same, normal, real_mesh

ORDER = ("NHWC", "HWIO", "NHWC")
PARAMS = {"a": normal(3, 3, 2, 4), "b": normal(3, 3, 4, 4), "c": normal(2, 2, 4, 3)}
BATCH = normal(16, 6, 5, 2)


def convolve(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=ORDER)


def plain(params, images):
    """One by itself, one in a `jit`, one computed anew on the way back."""
    x = jnp.tanh(convolve(images, params["a"]))
    x = jax.jit(lambda x: jnp.tanh(convolve(x, params["b"], 2)))(x)
    x = jax.checkpoint(lambda x, c: jnp.sin(convolve(jnp.sin(x), c)))(x, params["c"])
    return jnp.sum(x**2, axis=(1, 2, 3))


def in_a_loop(params, images):
    """A loop of the user's own."""
    x = jnp.tanh(convolve(images, params["a"]))
    x, _ = lax.scan(lambda x, _: (jnp.tanh(convolve(x, params["b"])), None), x, None, length=2)
    return jnp.sum(x**2, axis=(1, 2, 3))


def stepped(loss, mesh, accumulate):
    step = sw.data_parallel(loss, optax.sgd(0.01), mesh=mesh, accumulate=accumulate)
    state, metrics = step(step.init(PARAMS), BATCH)
    return jax.device_get((state.params, metrics["loss"]))


@pytest.mark.parametrize("mesh", [None, real_mesh(data=4)])
@pytest.mark.parametrize("loss", [plain, in_a_loop])
def test_accumulated_gradients_are_those_of_the_batch(loss, mesh):
    want = stepped(loss, real_mesh(data=1), 1)
    assert_same(stepped(loss, mesh, 2), want)


def orders(loss, accumulate):
    step = sw.data_parallel(loss, optax.sgd(0.01), accumulate=accumulate)
    text = step.lower(step.init(PARAMS), BATCH).as_text()
    return set(re.findall(r"dim_numbers = (.*?), window", text))


def test_convolutions_of_parts_are_in_the_order_that_xla_is_fast_at():
    best = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    assert orders(plain, 2) == {best}
    assert len(orders(plain, 1)) > 1  # as autodiff wrote them: XLA does it itself


def test_what_is_computed_anew_still_is():
    step = sw.data_parallel(plain, optax.sgd(0.01), accumulate=2)
    text = step.lower(step.init(PARAMS), BATCH).as_text()
    assert "optimization_barrier" in text

"""What is lowered otherwise for an accelerator: the same numbers, here on the host."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._engine.lower import block_sums, passes, run

from ..support import normal, real_mesh


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    for module in (run, block_sums, passes):
        monkeypatch.setattr(module, "on_host", lambda: False)


def gradient(loss):
    """The gradient of the mean loss by the first argument, summed over devices by autodiff."""

    def step(w, x, *, mesh):
        def body(w, x):
            return jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    return step


def convolved(w, x):
    """Two layers, so that there is a gradient of what the second one takes."""
    for _ in range(2):
        x = jnp.tanh(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=ORDER))
    return jnp.mean(x**2)


ORDER = ("NHWC", "HWIO", "NHWC")


def attended(w, x):
    """Layers in a loop, with a mask that autodiff takes out of it."""

    def layer(x, w):
        scores = jnp.einsum("btd,bsd->bts", x @ w, x)
        causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
        return jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ x, None

    return jnp.mean(lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)


def lowered(loss, args, at_once):
    simulated = sw.simulate(gradient(loss), mesh=sw.mesh(data=4), at_once=at_once)
    low = jax.jit(simulated).lower(*args)
    want = jax.jit(lambda *a: gradient(loss)(*a, mesh=real_mesh(data=4)))(*args)
    np.testing.assert_allclose(low.compile()(*args), want, rtol=1e-5, atol=1e-6)
    return low.as_text()


@pytest.mark.parametrize("at_once", [1, 2])
def test_convolutions_reverse_their_weights_in_the_loop(at_once):
    """Outside of it, what XLA knows the gradient of a convolution by would not be seen."""
    text = lowered(convolved, (normal(3, 3, 2, 2), normal(8, 6, 6, 2, seed=1)), at_once)
    _, _, within = text.partition("stablehlo.while")  # in it, or in a function it calls
    turned = re.findall(r"(%\w+) = stablehlo.reverse", within)
    assert set(turned) & set(re.findall(r"stablehlo.convolution\(%\w+, (%\w+)\)", within))


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_a_mask_in_front_of_a_loop_stays_an_array(at_once):
    text = lowered(attended, (normal(3, 4, 4) / 4, normal(8, 6, 4, seed=1)), at_once)
    main, _, _ = text.partition("func.func private")
    assert re.search(r"stablehlo.optimization_barrier %\w+ : tensor<2x6x6xi1>", main)


def test_a_number_in_front_of_a_loop_does_not():
    """It is no more to read than the array that would be made of it."""

    def shifted(w, x):
        added = jnp.broadcast_to(w.sum(), x.shape)
        return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w + added), None), x, w)[0] ** 2)

    text = lowered(shifted, (normal(3, 4, 4) / 4, normal(8, 4, seed=1)), 1)
    assert "optimization_barrier" not in text

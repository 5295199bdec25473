"""What depends on the argument of a function, through loops too, on every version of JAX."""

import jax.numpy as jnp
import pytest
from jax import lax

from shardwise._runtime.train.step.dependence import dependents, depends


def _carried(x):
    return lax.scan(lambda c, _: (c + x.argmax(), None), 0, jnp.arange(3))[0]


def _beside(x):
    """It goes through the loop, and into another result of it."""
    _, counted = lax.scan(lambda c, n: (c + x.sum(), n), 0.0, jnp.arange(3))
    return counted.sum()


def test_each_result_and_each_argument_by_itself():
    def function(x, y):
        return y, lax.stop_gradient(x), x + y, jnp.float32(3)

    assert dependents(function, 1.0, 2.0) == [False, True, True, False]
    assert dependents(function, 1.0, 2.0, past="stop_gradient") == [False, False, True, False]


@pytest.mark.parametrize(("function", "does"), [(_carried, True), (_beside, False)])
def test_a_loop(function, does):
    assert depends(function, jnp.arange(4.0)) == does

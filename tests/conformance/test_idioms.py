"""The four idioms of data-parallel gradients, cell by cell: what JAX gives, right or wrong.

The right gradient is 70. With the check on, the transpose of the implicit cast of replicated
parameters sums already; with the check off, nothing does.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import real_mesh, vary


def local_loss(w, x):
    return jnp.mean((w * x) ** 2)


IDIOMS = {
    "mean of gradients": lambda w, x: lax.pmean(jax.grad(local_loss)(w, x), "data"),
    "gradient of mean": lambda w, x: jax.grad(lambda w: lax.pmean(local_loss(w, x), "data"))(w),
    "gradient alone": lambda w, x: jax.grad(local_loss)(w, x),
    "of varying parameters": lambda w, x: lax.pmean(
        jax.grad(local_loss)(vary(w, ["data"]), x), "data"
    ),
}

TABLE = [
    ("mean of gradients", True, 280),
    ("mean of gradients", False, 70),
    ("gradient of mean", True, 70),
    ("gradient of mean", False, 2),
    ("gradient alone", True, 280),
    ("gradient alone", False, 2),
    ("of varying parameters", True, 70),
    ("of varying parameters", False, 70),
]


@pytest.mark.parametrize("at_once", [1, "auto"])
@pytest.mark.parametrize(("idiom", "check_vma", "gradient"), TABLE)
def test_cell(idiom, check_vma, gradient, at_once):
    def step(w, x, *, mesh):
        body = IDIOMS[idiom]
        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, check_vma=check_vma, **specs)(w, x)

    w, x = jnp.float32(2), jnp.arange(8.0)
    assert sw.simulate(step, mesh=sw.mesh(data=4), at_once=at_once)(w, x) == gradient
    real = jax.jit(partial(step, mesh=real_mesh(data=4)))
    assert np.asarray(real(w, x)) == gradient

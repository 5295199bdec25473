"""No wrong program is proved."""

import jax
import numpy as np
import pytest

import shardwise as sw

from . import campaign
from .wrong import WRONG
from .wrong_structure import SQUARE


@pytest.mark.parametrize("name", WRONG)
def test_it_is_not_proved(name):
    program = WRONG[name]
    sizes, reference = program.sizes, program.reference
    got = campaign.real(program, sizes)(*program.args)
    if reference is not None:
        want = [np.asarray(reference(*program.args))]
    else:
        want = campaign.real(program, dict.fromkeys(sizes, 1))(*program.args)
    assert not all(map(campaign.alike, got, want)), "these numbers do not show the difference"
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.args]
    proof = sw.prove(program, *shapes, mesh=sw.mesh(sizes), reference=reference, run=False)
    assert proof.status != "proved", proof


def test_sizes_that_are_integers_of_numpy():
    """JAX keeps NumPy's integers in parameters; as sizes, they once ended in a raw error."""

    def body(x):
        n = np.int64(1)
        left = jax.lax.pad(x, 0.0, ((n, n, 0 * n), (0 * n, 0 * n, 0 * n)))
        right = jax.lax.slice(left, (n, 0 * n), (n + x.shape[0], 4 * n), (n, n))
        return jax.lax.psum(jax.numpy.exp(right).sum(0), "a") / 3

    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=jax.P("a"), out_specs=jax.P())(x)

    assert sw.prove(program, SQUARE, mesh=sw.mesh(a=4), run=False)

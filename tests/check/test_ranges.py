"""Numbers that leave the range of their type, on some meshes and not on others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._check.ranges import whole_numbers
from shardwise._tracing import Tracing
from tests.support import real_mesh

SIZES = [1, 2, 4, 8]


def split(body, in_specs=P("data"), out_specs=P()):  # noqa: B008
    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": out_specs, "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def product(x, w):
    """`preferred_element_type` is forgotten: a product of int8 is an int8."""
    return lax.psum((x @ w).astype(jnp.int32), "data")


def rows(count, *shape):
    return np.random.default_rng(count).integers(-100, 100, (count, *shape)).astype(np.int8)


WRAPS = {
    "on two devices alone": (
        split(product, (P(None, "data"), P("data"))),
        (jnp.ones((1, 16), jnp.int8), jnp.asarray([[20]] * 8 + [[-15]] * 8, jnp.int8)),
    ),
    "everywhere": (split(product, (P(None, "data"), P("data"))), (rows(4, 64), rows(64, 6))),
    "a mean": (split(lambda w: lax.pmean(w, "data"), P()), (jnp.asarray([3, 200], jnp.uint8),)),
    "int32": (split(lambda w: lax.pmean(w, "data"), P()), (jnp.asarray([3, 1 << 30], jnp.int32),)),
    "on the way": (
        split(lambda x: lax.psum((x.astype(jnp.int16) ** 2).sum(dtype=jnp.int16) / 2.0, "data")),
        (jnp.full(16, 90, jnp.int8),),
    ),
}


@pytest.mark.parametrize("name", WRAPS)
def test_whole_numbers_that_wrap_around_are_found_on_every_mesh(name):
    program, args = WRAPS[name]
    native = [np.asarray(program(*args, mesh=real_mesh(data=n))) for n in SIZES]
    wrong = [n for n, one in zip(SIZES, native, strict=True) if (one != native[0]).any()]
    assert wrong, "the program should show it"
    verdict = sw.check(program, *args, mesh={"data": SIZES})
    assert list(verdict.wrong_on) == [f"{{data: {n}}}" for n in wrong]
    assert "SW410" not in {finding.code for finding in verdict.findings}
    assert any("wrap around" in finding.remedy for finding in verdict.findings)


COUNTS = {
    "a count": lambda x: lax.psum((x > 0).sum(), "data"),
    "a count of rows": lambda x: lax.psum(jnp.cumsum(x > 0)[-1], "data"),
    "places": lambda x: lax.psum(jnp.argmax(x), "data"),
    "a mean of a count": lambda x: lax.pmean((x > 0).mean(), "data"),
    "floats": lambda x: lax.psum(x.sum(), "data"),
}
NUMBERS = {
    "products": lambda x: lax.psum(((x > 0) * 1000).sum(), "data"),
    "a narrow count": lambda x: lax.psum((x > 0).astype(jnp.int8).sum(dtype=jnp.int8), "data"),
    "casts": lambda x: lax.psum(x.astype(jnp.int32).sum(), "data"),
}


@pytest.mark.parametrize("name", [*COUNTS, *NUMBERS])
def test_counts_are_no_reason_to_run_on_every_mesh(name):
    body = (COUNTS | NUMBERS)[name]
    traced = Tracing(split(body), sw.mesh(data=2))((np.ones(8, np.float32),), {})
    assert (whole_numbers(traced.program.body) is None) == (name in COUNTS)

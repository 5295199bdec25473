"""Loops that are linear in what they carry: a factor goes through them, and through no others."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw

from .campaign import alike
from .oracle import Meaning, check_meaning

MESH = {"data": 4}

STEPS = [
    lambda a, b, x: a * x,
    lambda a, b, x: jnp.tanh(x) * b - a / 3,
    lambda a, b, x: a + b,
    lambda a, b, x: jnp.where(x > 0, a, b),
    lambda a, b, x: a * x.sum() + b[::-1],
    lambda a, b, x: jnp.cumsum(a) + jnp.zeros_like(b),
    lambda a, b, x: a @ jnp.outer(x, x),
    lambda a, b, x: jnp.concatenate([a[:1], b[1:]]),
    lambda a, b, x: jnp.zeros_like(a),
    lambda a, b, x: x,
    lambda a, b, x: a,
    lambda a, b, x: a + x,
    lambda a, b, x: jnp.sin(a),
    lambda a, b, x: a * b,
    lambda a, b, x: jnp.maximum(a, b),
    lambda a, b, x: a / (1 + b * b),
]
LINEAR = 11
"""So many of them are linear in what is carried, or do not depend on it."""


def drawn(seed):
    draw = random.Random(seed)
    pool = STEPS[:LINEAR] if draw.random() < 0.5 else STEPS
    first, second, out = (draw.choice(pool) for _ in range(3))
    reverse, start = draw.random() < 0.5, draw.choice([0.0, -0.5])

    def step(w, x, *, mesh):
        def body(w, x):
            own = (x @ w).mean(0)  # over a device's own rows: another factor than over all

            def turn(carry, row):
                a, b = carry
                return (first(a, b, row), second(b, a, row)), out(a, b, row)

            (a, b), rows = lax.scan(turn, (own, start * own), w, reverse=reverse)
            return lax.pmean((a, b, rows), "data")

        specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(w, x)

    numbers = np.random.default_rng(seed)
    return step, [numbers.normal(size=s).astype(np.float32) for s in [(3, 3), (8, 3)]]


def compared(seed):
    step, args = drawn(seed)
    assert check_meaning(Meaning(step, args, sw.mesh(MESH))).compared
    proof = sw.prove(step, *args, mesh=MESH, run=False)
    rows = [sw.simulate(step, mesh=sw.mesh(data=n), at_once=8)(*args) for n in (4, 1)]
    same = [alike(np.asarray(a), np.asarray(b)) for a, b in zip(*rows, strict=True)]
    return [*zip((one.status for one in proof.results), same, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_random_loops(seed):
    for status, same in compared(seed):
        assert (status, same) not in (("proved", False), ("refuted", True))


def layered(f, reduce=lax.pmean):
    """The gradient of a scan over layers, of each device's own mean, reduced after it."""

    def step(w, x, *, mesh):
        def loss(w, x):
            return jnp.mean(lax.scan(lambda h, own: (f(h @ own), None), x, w)[0] ** 2)

        def body(w, x):
            own = lax.pcast(w, "data", to="varying")
            return reduce(jax.grad(loss)(own, x), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

    return step


SHAPES = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(5, 8, 8), (64, 8)]]


def test_the_gradient_of_a_scan_over_layers_is_averaged_after_it():
    assert sw.prove(layered(jnp.tanh), *SHAPES, mesh=MESH, run=False)
    assert sw.prove(layered(jax.nn.gelu), *SHAPES, mesh=MESH, run=False)


def test_summed_instead_it_is_refuted_with_its_factor():
    proof = sw.prove(layered(jnp.tanh, lax.psum), *SHAPES, mesh=MESH, run=False)
    assert proof.status == "refuted"
    assert "4 times" in proof.findings[0].message

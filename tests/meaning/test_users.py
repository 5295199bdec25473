"""Programs that people have: right ones are proved, and a slip in each is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.flatten_util import ravel_pytree

import shardwise as sw
from shardwise._analysis.prove.reading import ReadProgram
from shardwise._engine.tracing import Tracing
from shardwise._meaning import Merger
from tests.support import normal

from .evaluate import Evaluator

W, X, Y = (normal(8, 16), normal(16, 4)), normal(16, 8), normal(16, 4)
STEP = (P(), P("d"), P("d"))
PROGRAMS = {}


def program(ins, outs, *args, vma=True):
    """Enter the body of a `shard_map`, which is given a slip: 0 for none."""

    def enter(body):
        PROGRAMS[body.__name__] = (body, ins, outs, args, vma)
        return body

    return enter


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - y) ** 2)


def gradient(w, x, y):
    return jax.grad(lambda w: lax.pmean(loss(w, x, y), "d"))(w)


@program(STEP, P(), W, X, Y)
def microbatches_by_vmap(slip, w, x, y):
    xs, ys = x.reshape(2, -1, 8), y.reshape(2, -1, 4)
    g = jax.vmap(gradient, (None, 0, 0))(w, xs, ys if not slip else ys[::-1])
    return jax.tree.map(lambda g: g.mean(0), g)


@program(STEP, P(), W, X, Y)
def weighted_microbatches_by_vmap(slip, w, x, y):
    """The weight goes with the place in a microbatch, so that how many there are matters."""
    each = jax.vmap(lambda x, y: ((x @ w[0] @ w[1] - y) ** 2).sum())
    xs, ys = x.reshape(2, -1, 8), y.reshape(2, -1, 4)
    scale = jnp.array([1.0, 2.0]) if slip else jnp.ones(2)
    return lax.psum((each(xs, ys) * scale).sum(), "d")


@program(STEP, P(), W, X, Y)
def every_second_row(slip, w, x, y):
    total = jax.tree.map(jnp.zeros_like, w)
    for i in range(2):
        g = gradient(w, x[i::2], (y[::-1] if slip else y)[i::2])
        total = jax.tree.map(jnp.add, total, g)
    return jax.tree.map(lambda g: g / 2, total)


@program(STEP, P(), W, X, Y, vma=False)
def flat_padded_parameters(slip, w, x, y):
    """ZeRO: gradients and parameters as one array, padded so that it divides."""
    flat, unravel = ravel_pytree(w)
    k, i = lax.axis_size("d"), lax.axis_index("d")
    pad = (0, -flat.size % (k * 64)) if not slip else (k, -(flat.size + k) % (k * 64))
    g = jnp.pad(ravel_pytree(jax.grad(loss)(w, x, y))[0], pad)
    g = lax.psum_scatter(g, "d", tiled=True) / k
    mine = lax.dynamic_slice(jnp.pad(flat, pad), (i * g.size,), (g.size,))
    return unravel(lax.all_gather(mine - 0.1 * g, "d", tiled=True)[: flat.size])


@program((P("d"), P(None, "d")), P("d"), X, normal(8, 16), vma=False)
def multiplied_while_gathered(slip, x, w):
    k, i, c = lax.axis_size("d"), lax.axis_index("d"), w.shape[1]
    out = jnp.zeros((x.shape[0], c * k))
    for step in range(k):
        out = lax.dynamic_update_slice(out, x @ w, (0, (i - step + slip) % k * c))
        w = lax.ppermute(w, "d", [(j, (j + 1) % k) for j in range(k)])
    return out


@program(P("d"), P("d"), X)
def a_mean_round_a_ring(slip, x):
    k, part = lax.axis_size("d"), x.mean(0)
    total = part
    for _ in range(k - 1 - (slip and k > 1)):
        part = lax.ppermute(part, "d", [(a, (a + 1) % k) for a in range(k)])
        total = total + part
    return x - total / k


@program(P("d"), P("d"), normal(16, 16))
def transformed_along_both(slip, x):
    y = jnp.fft.fft(x, axis=1)
    y = jnp.fft.fft(lax.all_to_all(y, "d", 1, 0, tiled=True), axis=1 if slip else 0)
    return lax.all_to_all(y, "d", 0, 1, tiled=True).real


def read(name, slip):
    body, ins, outs, args, vma = PROGRAMS[name]

    def step(*args, mesh):
        own = jax.shard_map(
            lambda *args: body(slip, *args),
            mesh=mesh,
            in_specs=ins,
            out_specs=outs,
            check_vma=vma,
        )
        return own(*args)

    return step, args


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_proved_and_its_slip_is_not(name):
    step, args = read(name, 0)
    assert sw.prove(step, *args, mesh=sw.mesh(d=4), run=False), name
    step, args = read(name, 1)
    proof = sw.prove(step, *args, mesh=sw.mesh(d=4), run=False)
    assert proof.status != "proved", name


# --- dimensions that are only summed over, as one

A, B = normal(2, 3, 4, 5), normal(24, 5)
SUMS = {
    "all": lambda a, b: a.sum(),
    "two": lambda a, b: jnp.exp(a).sum((0, 1)),
    "apart": lambda a, b: a.sum((0, 2)),
    "of a reshape": lambda a, b: jnp.tanh(b.reshape(4, 6, 5)).sum((0, 1)),
    "of a reshape, one": lambda a, b: jnp.tanh(b.reshape(4, 6, 5)).sum(1),
    "of one into three": lambda a, b: b.reshape(2, 3, 4, 5).sum((0, 1)),
    "a batch": lambda a, b: jnp.einsum("kbd,kbe->de", b.reshape(4, 6, 5), b.reshape(4, 6, 5) ** 2),
    "a batch, added": lambda a, b: jnp.einsum(
        "kbd,kbe->kde", b.reshape(4, 6, 5), jnp.sin(b.reshape(4, 6, 5))
    ).sum(0),
    "a batch, not all": lambda a, b: jnp.einsum(
        "xkbd,xkbe->xkde", a, jnp.exp(b.reshape(2, 3, 4, 5))
    ).sum(1),
    "turned": lambda a, b: jnp.einsum("kbd,bke->de", b.reshape(4, 6, 5), b.reshape(6, 4, 5)),
    "through a product": lambda a, b: jnp.tanh(b.reshape(4, 6, 5) @ b[:5]).sum((0, 1)),
    "of what is spread": lambda a, b: (b.reshape(4, 6, 5) * b[:4, None] + b[:6]).sum((0, 1)),
    "largest": lambda a, b: b.reshape(4, 6, 5).max(2).sum(),
    "of one that is turned": lambda a, b: jnp.einsum(
        "kdb,kbe->de", b.reshape(4, 6, 5).transpose(0, 2, 1), jnp.cos(b.reshape(4, 6, 5))
    ),
    "transposed": lambda a, b: b.reshape(4, 6, 5).transpose(2, 0, 1).sum((1, 2)),
    "in another order": lambda a, b: (b.reshape(4, 6, 5).transpose(1, 0, 2) ** 2).sum((0, 1)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_are_merged_are_the_same_numbers(name):
    mesh = sw.mesh(d=1)
    own = ReadProgram.of(Tracing(SUMS[name], mesh), mesh, (A, B))
    (result,) = own.reading.meaning.results
    merged = Merger()(result.scaled)
    assert merged is not None
    evaluate = Evaluator([np.asarray(A, float), np.asarray(B, float)], {})
    np.testing.assert_allclose(evaluate(merged), evaluate(result.scaled), rtol=1e-9)
    np.testing.assert_allclose(evaluate(merged), SUMS[name](A, B), rtol=1e-4, atol=1e-4)


def test_how_a_batch_is_divided_does_not_matter_to_a_sum():
    def divided(k):
        def f(x, y, *, mesh):
            own = jax.vmap(lambda x, y: jnp.tanh(x).T @ y)(x.reshape(k, -1, 8), y.reshape(k, -1, 4))
            return own.sum(0)

        return f

    for k in (2, 4, 8):
        plain = lambda x, y: jnp.tanh(x).T @ y  # noqa: E731
        assert sw.prove(divided(k), X, Y, mesh=sw.mesh(d=1), reference=plain), k

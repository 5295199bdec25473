"""Ring attention: the running softmax is the softmax, and what is wrong with one is never proved.

The normal form that shows it is compared by numbers with what it is the normal form of.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw
from shardwise._meaning.blocks import Seams
from shardwise._meaning.softmax import Normal
from shardwise._meaning.ways import equal_in_blocks

from ..check.corpus.sequence import right_ring, ring_args
from .campaign import alike
from .oracle import Meaning

MESH = {"s": 3}
SHAPE = (6, 2, 4)


def arguments(seed=0):
    numbers = np.random.default_rng(seed)
    return [numbers.normal(size=SHAPE).astype(np.float32) for _ in range(3)]


def plain(q, k, v, causal=True):
    scores = jnp.einsum("qhd,khd->hqk", q, k) / 2
    seen = jnp.tri(len(q), dtype=bool) | (not causal)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


def ring(
    causal=True,
    loop="scan",
    start=0,
    turns=0,
    block=lambda me, turn, n: (me - turn) % n,
    values_go=True,
    rescale=("total", "weighted"),
    scale=2.0,
    largest="running",
    masked=-jnp.inf,
    shift=0,
):
    """A ring attention; every option but the first two is a way to get it wrong, or to vary it."""

    def body(q, k, v):
        me, n = lax.axis_index("s"), lax.axis_size("s")
        length, heads, _ = q.shape
        own = jnp.arange(length)

        def take(carry, k, v, turn):
            top, total, weighted = carry
            scores = jnp.einsum("qhd,khd->hqk", q, k) / scale
            first = block(me, turn, n) * length
            seen = (me * length + own[:, None] + shift >= first + own[None]) | (not causal)
            scores = jnp.where(seen, scores, masked)
            new = jnp.maximum(top, scores.max(-1)) if largest == "running" else scores.max(-1)
            fade = jnp.exp(top - new)
            weights = jnp.exp(scores - new[..., None])
            total = total * (fade if "total" in rescale else 1) + weights.sum(-1)
            kept = weighted * (fade[..., None] if "weighted" in rescale else 1)
            return new, total, kept + jnp.einsum("hqk,khd->hqd", weights, v)

        def rotate(state, turn):
            carry, k, v = state
            way = [(i, (i + 1) % n) for i in range(n)]
            k = lax.ppermute(k, "s", way)
            v = lax.ppermute(v, "s", way) if values_go else v
            return (take(carry, k, v, turn), k, v), None

        empty = jnp.full((heads, length), -jnp.inf), jnp.zeros((heads, length))
        carry = (*empty, jnp.zeros((heads, length, q.shape[-1])))
        carry = lax.pcast(carry, "s", to="varying") if start else take(carry, k, v, 0)
        order = range(1, n + turns)
        if loop == "scan":
            (carry, _, _), _ = lax.scan(rotate, (carry, k, v), jnp.arange(1, n + turns))
        elif loop == "fori":
            run = lambda i, state: rotate(state, i)[0]  # noqa: E731
            carry, _, _ = lax.fori_loop(1, n + turns, run, (carry, k, v))
        else:
            state = carry, k, v
            for turn in order:
                state, _ = rotate(state, turn)
            carry = state[0]
        _, total, weighted = carry
        return (weighted / total[..., None]).swapaxes(0, 1)

    def step(q, k, v, *, mesh):
        spec = P("s")
        specs = (spec, spec, spec)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=spec)(q, k, v)

    return step


RIGHT = {
    "causal": {},
    "all keys": {"causal": False},
    "fori": {"loop": "fori"},
    "written out": {"loop": "python"},
    "masked by a large number": {"masked": -1e9},
    "largest of the block": {"largest": "block", "causal": False},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_running_softmax_is_the_softmax(name):
    options = RIGHT[name]

    def reference(q, k, v):
        return plain(q, k, v, options.get("causal", True))

    if name != "masked by a large number":  # a large number is not infinite
        sizes = {"s": [1, 3]} if name == "causal" else MESH
        proof = sw.prove(ring(**options), *arguments(), mesh=sizes, reference=reference, run=False)
        assert proof, proof
    assert sw.prove(ring(**options), *arguments(), mesh=MESH, run=False)


WRONG = {
    "values stay behind": {"values_go": False},
    "a turn too few": {"turns": -1},
    "a turn too many": {"turns": 1, "causal": False},
    "mask of the other way round": {"block": lambda me, turn, n: (me + turn) % n},
    "the sum is not rescaled": {"rescale": ("weighted",)},
    "the weighted sum is not rescaled": {"rescale": ("total",)},
    "another scale": {"scale": 3.0},
    "mask off by one": {"shift": 1},
    "mask of local positions": {"block": lambda me, turn, n: me},
    "own block left out": {"start": 1},
    "own block last, where nothing is seen first": {"start": 1, "turns": 1},
}


FEW = ("mask off by one", "own block last, where nothing is seen first")
"""That these are wrong is not plain to see: their numbers are compared."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_ring_is_never_proved(name):
    options = WRONG[name]

    def reference(q, k, v):
        return plain(q, k, v, options.get("causal", True))

    proof = sw.prove(ring(**options), *arguments(), mesh=MESH, reference=reference, run=False)
    assert proof.status == "unknown"
    if name not in FEW:
        return
    rows = sw.simulate(ring(**options), mesh=sw.mesh(MESH))(*arguments()), reference(*arguments())
    assert not alike(*map(np.asarray, rows))


def test_a_large_ring_is_proved_from_shapes():
    shapes = [jax.ShapeDtypeStruct((1 << 20, 16, 128), jnp.bfloat16)] * 3
    assert sw.prove(ring(causal=False, loop="python"), *shapes, mesh={"s": 4}, run=False)


def test_the_ring_of_the_corpus():
    assert sw.prove(right_ring, *ring_args(), mesh={"sequence": 4}, run=False)


# --- the normal form, by numbers


@pytest.mark.parametrize("name", ["causal", "fori", "another scale", "mask off by one"])
def test_the_normal_form_has_the_same_numbers(name):
    options = RIGHT.get(name) or WRONG.get(name, {})
    meaning = Meaning(ring(**options), arguments(), sw.mesh(MESH), apart="s")
    (result,) = meaning.results
    seams = Seams([result.term])
    rows = [seams.pieces([(result.term, d)], size) for d, size in enumerate(SHAPE)]
    assert [len(row) for row in rows] == [3, 1, 1]
    normal, evaluate = Normal(seams), meaning.evaluator()
    whole = evaluate(result.scaled)
    for place in itertools.product(*rows):
        made = normal.block(result.scaled, place)
        evaluate.constants.update({t: x.astype(float) for t, x in normal.masks.items()})
        at = tuple(slice(start, start + size) for start, size in place)
        np.testing.assert_allclose(evaluate(made), whole[at], rtol=1e-9)
    assert equal_in_blocks(result, result)


def test_the_difference_of_two_infinities_is_not_a_number():
    def step(x, *, mesh):
        def body(x):
            top = jnp.full(x.shape, -jnp.inf)
            return jnp.exp(top - jnp.maximum(top, -jnp.inf)) * x

        return jax.shard_map(body, mesh=mesh, in_specs=P("s"), out_specs=P("s"))(x)

    x = np.ones(6, np.float32)
    assert not sw.prove(step, x, mesh=MESH, reference=lambda x: x, run=False)

"""Gradient accumulation as people write it: unrolled in Python, stacked and averaged, mapped.

What is right is proved, what is wrong never is; and every value of the loops that these programs
are read as is what the devices hold.
"""

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
STEPS = 4
SHAPES = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(4, 2), (32, 4), (32, 2)]]


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


grads = jax.grad(loss)


def parts(x, y, count=STEPS):
    size = len(x) // count
    return [(x[i * size : (i + 1) * size], y[i * size : (i + 1) * size]) for i in range(count)]


def stacked(x, count=STEPS):
    return x.reshape(count, -1, x.shape[-1])


def total(w, pairs):
    found = jnp.zeros_like(w)
    for x, y in pairs:
        found += grads(w, x, y)
    return found


def program(body):
    def step(w, x, y, *, mesh):
        def varying(w, x, y):
            return body(lax.pcast(w, "data", to="varying"), x, y)

        specs = (P(), P("data"), P("data"))
        return jax.shard_map(varying, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y)

    return step


def mean(x):
    return lax.pmean(x, "data")


def unrolled(w, x, y):
    return mean(total(w, parts(x, y)) / STEPS)


def summed_then_divided(w, x, y):
    return lax.psum(total(w, parts(x, y)), "data") / STEPS / lax.axis_size("data")


def microbatches_of_two_rows(w, x, y):
    pairs = zip(x.reshape(-1, 2, 4), y.reshape(-1, 2, 2), strict=True)
    found = [grads(w, *pair) for pair in pairs]
    return mean(sum(found) / len(found))


def split_and_stacked(w, x, y):
    pairs = zip(jnp.split(x, STEPS), jnp.split(y, STEPS), strict=True)
    return mean(jnp.mean(jnp.stack([grads(w, *pair) for pair in pairs]), 0))


def gradient_of_the_sum(w, x, y):
    return mean(jax.grad(lambda w: sum(loss(w, *p) for p in parts(x, y)) / STEPS)(w))


def mapped(w, x, y):
    found = lax.map(lambda pair: grads(w, *pair), (stacked(x), stacked(y)))
    return mean(found.mean(0))


def mapped_and_summed_first(w, x, y):
    return mean(lax.map(lambda pair: grads(w, *pair), (stacked(x), stacked(y)))).mean(0)


def summed_in_the_loop(w, x, y):
    def step(found, pair):
        return found + lax.psum(grads(w, *pair), "data"), None

    zero = jnp.zeros((4, 2))
    found, _ = lax.scan(step, zero, (x.reshape(2, -1, 4), y.reshape(2, -1, 2)))
    return found / 2 / lax.axis_size("data")


def averaged_at_every_step(w, x, y):
    return sum(mean(grads(w, *pair)) for pair in parts(x, y)) / STEPS


def at_computed_places(w, x, y):
    size = len(x) // STEPS
    found = jnp.zeros_like(w)
    for i in range(STEPS):
        rows = (lax.dynamic_slice_in_dim(a, i * size, size) for a in (x, y))
        found += grads(w, *rows)
    return mean(found / STEPS)


def clipped_and_with_the_loss(w, x, y):
    found = [jax.value_and_grad(loss)(w, *pair) for pair in parts(x, y)]
    loss_of_all = mean(sum(one for one, _ in found) / STEPS)
    gradient = mean(sum(one for _, one in found) / STEPS)
    return gradient / jnp.maximum(jnp.sqrt((gradient**2).sum()), 1.0) * loss_of_all


RIGHT = [
    *(unrolled, summed_then_divided, microbatches_of_two_rows, split_and_stacked),
    *(gradient_of_the_sum, mapped, mapped_and_summed_first, summed_in_the_loop),
    *(averaged_at_every_step, at_computed_places, clipped_and_with_the_loss),
]


@pytest.mark.parametrize("body", RIGHT, ids=lambda f: f.__name__)
def test_the_forms_of_accumulation_are_proved(body):
    proof = sw.prove(program(body), *SHAPES, mesh=MESH, run=False)
    assert proof, proof
    if body is not clipped_and_with_the_loss:
        proof = sw.prove(program(body), *SHAPES, mesh=MESH, reference=grads, run=False)
        assert proof, proof


def missing_divisor(w, x, y):
    return lax.pmean(total(w, parts(x, y, len(x) // 2)), "data")


def summed_twice(w, x, y):
    return lax.psum(lax.psum(total(w, parts(x, y)), "data"), "data") / STEPS


def summed_not_averaged(w, x, y):
    return lax.psum(total(w, parts(x, y)) / STEPS, "data")


def mapped_without_divisor(w, x, y):
    found = lax.map(lambda p: grads(w, *p), (x.reshape(-1, 2, 4), y.reshape(-1, 2, 2)))
    return lax.pmean(found.sum(0), "data")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (missing_divisor, "1/4 of what it is"),
        (summed_twice, "16 times"),
        (summed_not_averaged, "4 times"),
        (mapped_without_divisor, "1/4 of what it is"),
    ],
    ids=lambda x: getattr(x, "__name__", "says"),
)
def test_a_wrong_factor_is_refuted_at_its_line(body, says):
    proof = sw.prove(program(body), *SHAPES, mesh=MESH, run=False)
    assert proof.status == "refuted", proof
    assert says in proof.findings[0].message
    first, last = body.__code__.co_firstlineno, body.__code__.co_firstlineno + 4
    assert first < proof.findings[0].where.line < last


def one_part_twice(w, x, y):
    pairs = parts(x, y)
    return mean(total(w, [*pairs[:3], pairs[2]]) / STEPS)


def targets_of_another_part(w, x, y):
    pairs = zip(jnp.split(x, STEPS), reversed(jnp.split(y, STEPS)), strict=True)
    return mean(total(w, pairs) / STEPS)


def means_of_unequal_parts(w, x, y):
    return mean((grads(w, x[:3], y[:3]) + grads(w, x[3:], y[3:])) / 2)


def parts_that_overlap(w, x, y):
    size = len(x) // STEPS
    rows = [slice(i * size, (i + 2) * size) for i in range(STEPS - 1)]
    return mean(total(w, [(x[own], y[own]) for own in rows]) / (STEPS - 1))


def last_part_left_out(w, x, y):
    return mean(total(w, parts(x, y)[:-1]) / (STEPS - 1))


def another_weight_for_each(w, x, y):
    weights = [0.1, 0.2, 0.3, 0.4]
    return mean(sum(c * grads(w, *p) for c, p in zip(weights, parts(x, y), strict=True)))


@pytest.mark.parametrize(
    "body",
    [
        *(one_part_twice, targets_of_another_part, means_of_unequal_parts),
        *(parts_that_overlap, last_part_left_out, another_weight_for_each),
    ],
    ids=lambda f: f.__name__,
)
def test_wrong_parts_are_never_proved(body):
    assert sw.prove(program(body), *SHAPES, mesh=MESH, run=False).status == "unknown"


# --- random ones, compared by numbers


def drawn(seed):
    """A program that accumulates in some way, more often right than not."""
    draw = random.Random(seed)
    steps, along = draw.choice([2, 4]), draw.choice([0, 1])
    hidden, cut = draw.random() < 0.5, draw.choice(["slice", "split", "rows", "computed"])
    added = draw.choice(["sum", "tree", "stack", "concatenate"])
    slips = {
        kind: draw.random() < 0.12
        for kind in ("order", "twice", "divisor", "summed", "weights", "shift", "short", "whole")
    }

    def own(w, v, x, y):
        h = jnp.tanh(x.T @ w if along else x @ w)
        h = jnp.sin(h) @ v if hidden else h @ v
        return jnp.mean((h - (y.T if along else y)) ** 2)

    def pieces(a, shift=0):
        size = a.shape[along] // steps
        if cut == "split" and not shift:
            return jnp.split(a, steps, along)
        if cut == "rows" and not shift:
            shape = (*a.shape[:along], steps, size, *a.shape[along + 1 :])
            return [*jnp.moveaxis(a.reshape(shape), along, 0)]
        starts = [max(0, i * size - shift) for i in range(steps)]
        if cut == "computed":
            return [lax.dynamic_slice_in_dim(a, start, size, along) for start in starts]
        return [lax.slice_in_dim(a, start, start + size, axis=along) for start in starts]

    def body(w, v, x, y):
        w, v = lax.pcast((w, v), "data", to="varying")
        rows, targets = pieces(x, int(slips["shift"])), pieces(y)
        if slips["order"]:
            targets = targets[::-1]
        if slips["twice"]:
            rows = [rows[0], *rows[:-1]]
        if slips["whole"]:
            rows, targets = [*rows[:-1], x], [*targets[:-1], y]
        found = [jax.grad(own, (0, 1))(w, v, *pair) for pair in zip(rows, targets, strict=True)]
        if slips["weights"]:
            found = [
                jax.tree.map(lambda g, i=i: g * (1 + i % 2), one) for i, one in enumerate(found)
            ]
        found = found[: -1 if slips["short"] else None]
        reduce = lax.psum if slips["summed"] else lax.pmean
        count = len(x) if slips["divisor"] else steps
        return [reduce(sums(column) / count, "data") for column in zip(*found, strict=True)]

    def sums(values):
        if added == "stack":
            return jnp.stack(values).sum(0)
        if added == "concatenate":
            return jnp.concatenate([v[None] for v in values]).sum(0)
        if added == "tree" and len(values) == 4:
            return (values[0] + values[1]) + (values[2] + values[3])
        return sum(values)

    def step(w, v, x, y, *, mesh):
        rows = P(None, "data") if along else P("data")
        specs = (P(), P(), rows, rows)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, v, x, y)

    numbers = np.random.default_rng(seed)
    shapes = [(4, 3), (3, 2), (4, 32) if along else (32, 4), (2, 32) if along else (32, 2)]
    return step, [numbers.normal(size=s).astype(np.float32) for s in shapes], any(slips.values())


def compared(seed):
    """The status of every result, and whether the numbers are the same."""
    step, args, _ = drawn(seed)
    meaning = Meaning(step, args, sw.mesh(MESH), loops=True)
    assert check_meaning(meaning).compared
    proof = sw.prove(step, *args, mesh=MESH, run=False)
    rows = [sw.simulate(step, mesh=sw.mesh(data=n), at_once=8)(*args) for n in (MESH["data"], 1)]
    same = [alike(np.asarray(a), np.asarray(b)) for a, b in zip(*rows, strict=True)]
    return [*zip((one.status for one in proof.results), same, strict=True)]


@pytest.mark.parametrize("seed", range(3))
def test_random_accumulations(seed):
    for status, same in compared(seed):
        assert (status, same) not in (("proved", False), ("refuted", True))

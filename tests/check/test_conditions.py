"""Shapes instead of data: what shows only where a condition holds is found, or reported."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import check, real_mesh

from .corpus import pairs

MESH = {"d": [1, 2, 4]}


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


def on_shards(body, *specs, out_specs=P()):  # noqa: B008
    def program(*args, mesh):
        in_specs = specs or P("d")
        mapped = jax.shard_map(
            body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return mapped(*args)

    return program


def notes(verdict):
    return [finding for finding in verdict.findings if finding.code == "SW507"]


def mean_is_zero(x):
    mean = x.mean()
    return lax.pmean(jnp.where(mean == 0, 5.0, mean), "d")


def difference_is_three(x, y):
    return lax.psum(jnp.where(((x - y) == 3).any(), 0.0, x.sum()), "d")


def sum_is_seven(x):
    return lax.psum(jnp.where(x.sum() == 7, 100.0, x.sum()), "d")


def mean_is_a_half(x):
    return lax.pmean(jnp.where(x.mean() == 0.5, 100.0, x.mean()), "d")


def nothing_counts(x, mask):
    count = mask.sum()
    return lax.psum(jnp.where(count == 0, 1.0, (x * mask).sum()), "d")


def is_large(x):
    return lax.psum(jnp.where(jnp.linalg.norm(x) > 30, 1.0, x.sum()), "d")


def branches(x):
    take = lambda x: lax.psum(x.sum(), "d")  # noqa: E731
    return lax.cond(lax.pmean(x.mean(), "d") == 0, lambda x: x.mean() + 1, take, x)


def in_a_loop(x):
    def step(total, row):
        return total + jnp.where(row.sum() == 0, 1.0, row.sum()), None

    return lax.psum(lax.scan(step, 0.0, x)[0], "d")


def in_a_while_loop(x):
    def step(state):
        index, total = state
        row = x[:, index]
        return index + 1, total + jnp.where(row.sum() == 0, 1.0, row.sum())

    return lax.psum(lax.while_loop(lambda state: state[0] < 3, step, (0, 0.0))[1], "d")


def is_nan(x):
    mean = x.mean()
    return lax.pmean(jnp.where(jnp.isnan(mean), 0.0, mean), "d")


def more_than_five_numbers(x):
    special = functools.reduce(jnp.logical_or, [x == n for n in (1.5, 2.5, 3.5, 4.5, 5.5, 6.5)])
    return lax.psum(jnp.where(special.any(), 0.0, x.sum()), "d")


def is_odd_number(x):
    mean = x.mean()
    return lax.pmean(jnp.where(mean * mean == 150.0625, 0.0, mean), "d")  # reported


ZEROS, HALF = np.zeros(16), np.repeat([0.0, 1.0], 8)
FOUND = {
    mean_is_zero: ([floats(16)], [HALF]),
    difference_is_three: ([floats(16)] * 2, [HALF + 3, HALF * 4]),
    sum_is_seven: ([floats(16)], [HALF / 8 + 7 / 8]),
    mean_is_a_half: ([floats(16)], [HALF / 2]),
    nothing_counts: ([floats(16), jax.ShapeDtypeStruct((16,), "bool")], [HALF, ZEROS > 0]),
    is_large: ([floats(16)], [HALF * 100]),
    branches: ([floats(16)], [HALF - 0.5]),
    in_a_loop: ([floats(16, 4)], [np.zeros((16, 4))]),
    in_a_while_loop: ([floats(16, 3)], [np.zeros((16, 3))]),
    is_nan: ([floats(16)], [np.where(HALF, np.nan, 1)]),
    more_than_five_numbers: ([floats(16)], [HALF / 2 + 1]),
}
SPECS = {in_a_loop: [P(None, "d")]}
"""Programs that are wrong only where a condition holds, with arguments for which it does."""


@pytest.mark.parametrize("body", FOUND, ids=lambda body: body.__name__)
def test_what_is_wrong_where_a_condition_holds_is_found(body):
    shapes, args = FOUND[body]
    program = on_shards(body, *SPECS.get(body, ()))
    args = [np.asarray(x, shape.dtype) for x, shape in zip(args, shapes, strict=True)]
    one, *others = (np.asarray(program(*args, mesh=real_mesh(d=n))) for n in (1, 2, 4))
    assert any(not np.allclose(one, other, equal_nan=True) for other in others)
    verdict = check(program, *shapes, mesh=MESH)
    if body is sum_is_seven:  # changing the arguments by 1e-13 of themselves shows as much
        assert [finding.code for finding in verdict.findings] == ["SW506"]
    else:
        assert not verdict.ok, verdict


def test_a_condition_that_no_values_meet_is_reported_at_its_line():
    program = on_shards(is_odd_number)
    x = np.repeat(np.float32([12.25, 1.0]), 8)
    one, two = (np.asarray(program(x, mesh=real_mesh(d=n))) for n in (1, 2))
    assert one != two
    verdict = check(program, floats(16), mesh=MESH)
    (note,) = notes(verdict)
    lines, start = inspect.getsourcelines(is_odd_number)
    assert note.where.line == start + next(i for i, s in enumerate(lines) if "# reported" in s)
    assert note.message.startswith("`mean * mean == 150.0625` was never true for the values drawn")
    assert verdict.ok
    assert verdict.limited
    assert not notes(check(program, jnp.arange(16.0) ** 2, mesh=MESH))
    assert not check(program, x, mesh=MESH).ok


def test_several_conditions_are_one_note():
    def body(x):
        a = jnp.where(x.mean() ** 2 == 150.0625, 0.0, x.sum())
        return lax.psum(jnp.where(x.min() ** 2 == 150.0625, 0.0, a), "d")

    (note,) = notes(check(on_shards(body), floats(16), mesh=MESH))
    line = body.__code__.co_firstlineno
    assert note.where.line == line + 1
    assert note.message.endswith(f"; and 1 more, in line {line + 2}")


def test_ties_of_computed_scores_are_drawn():
    def body(x, w):
        scores = x @ w
        best, at = scores.max(-1), scores.argmax(-1) + lax.axis_index("d") * w.shape[1]
        top = lax.pmax(best, "d")
        return lax.pmax(jnp.where(best == top, at, -1), "d")  # the last of equal scores

    program = on_shards(body, P(), P(None, "d"))
    x, w = np.ones((3, 4), np.float32), np.ones((4, 8), np.float32)
    one, two = (np.asarray(program(x, w, mesh=real_mesh(d=n))) for n in (1, 2))
    assert (one != two).all()
    verdict = check(program, floats(3, 4), floats(4, 8), mesh=MESH)
    assert verdict.ok
    assert [finding.code for finding in verdict.findings] == ["SW506"]


# --- ordinary programs, of which nothing is to be reported


def causal(x):
    scores = x @ lax.all_gather(x, "d", tiled=True).T
    rows = jnp.arange(len(x))[:, None] + len(x) * lax.axis_index("d")
    scores = jnp.where(jnp.arange(scores.shape[1])[None] <= rows, scores, -jnp.inf)
    return jax.nn.softmax(scores) @ lax.all_gather(x, "d", tiled=True)


def relu(x):
    return lax.pmean((jnp.where(x > 0, x, 0) + jax.nn.leaky_relu(x)).mean(0), "d") ** 2


def safe_division(x, mask):
    count = lax.psum(mask.sum(), "d")
    return lax.psum((x * mask).sum(), "d") / jnp.where(count == 0, 1, count)


def normalised(x):
    norm = jnp.sqrt(lax.psum(jnp.sum(x * x), "d"))
    return jnp.clip(jnp.where(norm > 1.0, x / norm, x), -1, 1)


def unit_rows(x):
    norm = jnp.linalg.norm(x, axis=-1, keepdims=True)
    return x / jnp.where(norm == 0, 1.0, norm)


def embedding(table, ids):
    start = lax.axis_index("d") * len(table)
    inside = (ids >= start) & (ids < start + len(table))
    rows = table[jnp.where(inside, ids - start, 0)]
    return lax.psum(jnp.where(inside[:, None], rows, 0), "d")


def skipped(x):
    w = jnp.ones(x.shape[1])
    grad = lax.pmean(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), "d")
    update = optax.clip_by_global_norm(1.0).update(grad, optax.EmptyState())[0]
    return jnp.where(jnp.isfinite(grad).all(), w - 0.1 * update, w)


def noisy(key, x):
    keep = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.9, (x.shape[1],))
    return jnp.sort(lax.pmean(jnp.where(keep, x, 0).mean(0), "d"))


def loss(x, labels):
    log_p = x - jax.nn.logsumexp(x, -1, keepdims=True)
    counted = labels != -100
    losses = -jnp.take_along_axis(log_p, jnp.where(counted, labels, 0)[:, None], 1)[:, 0]
    return lax.psum(jnp.where(counted, losses, 0).sum(), "d") / lax.psum(counted.sum(), "d")


def rounds(x):
    def step(i, total):
        return jnp.where(i == 0, 0.0, total) + lax.psum(jnp.nan_to_num(x).sum() * i, "d")

    return lax.fori_loop(0, 3, step, 0.0)


def ring(x):
    n = lax.axis_size("d")

    def hop(carry, i):
        block, best = carry
        best = jnp.maximum(best, block.max())
        return (lax.ppermute(block, "d", [(j, (j + 1) % n) for j in range(n)]), best), i == n - 1

    return lax.scan(hop, (x, -jnp.inf), jnp.arange(n))[0][1]


def predicted(x):
    position = x.argmax() + lax.axis_index("d") * len(x)
    is_largest = x.max() == lax.pmax(x.max(), "d")
    return lax.pmin(jnp.where(is_largest, position, 1 << 20), "d")


def whitened(x):
    cov = lax.psum(x.T @ x, "d") + jnp.eye(x.shape[1])
    return jnp.linalg.solve(cov, x.T).T, jnp.linalg.slogdet(cov)[1]


INT = functools.partial(jax.ShapeDtypeStruct, dtype="int32")
ORDINARY = {
    causal: ([floats(16, 4)], [P("d")], P("d")),
    relu: ([floats(16, 4)], [P("d")], P()),
    safe_division: ([floats(16), jax.ShapeDtypeStruct((16,), "bool")], [P("d"), P("d")], P()),
    normalised: ([floats(16)], [P("d")], P("d")),
    unit_rows: ([floats(16, 4)], [P("d")], P("d")),
    embedding: ([floats(16, 4), INT((8,))], [P("d"), P()], P()),
    skipped: ([floats(16, 4)], [P("d")], P()),
    noisy: ([jax.eval_shape(lambda: jax.random.key(0)), floats(16, 4)], [P(), P("d")], P()),
    loss: ([floats(16, 4), INT((16,))], [P("d"), P("d")], P()),
    rounds: ([floats(16)], [P("d")], P()),
    ring: ([floats(16)], [P("d")], P()),
    predicted: ([floats(16)], [P("d")], P()),
    whitened: ([floats(16, 4)], [P("d")], (P("d"), P())),
}


@pytest.mark.parametrize("proved", [True, False], ids=["", "against itself"])
@pytest.mark.parametrize("body", ORDINARY, ids=lambda body: body.__name__)
def test_ordinary_programs_have_no_note(body, proved):
    """Also with the program as its own reference, when no proof makes drawing needless."""
    shapes, specs, out_specs = ORDINARY[body]
    program = on_shards(body, *specs, out_specs=out_specs)
    reference = None if proved else functools.partial(program, mesh=sw.mesh(d=1))
    verdict = check(program, *shapes, mesh=MESH, reference=reference)
    assert verdict.ok, verdict
    assert not verdict.limited, verdict


@pytest.mark.rare
@pytest.mark.parametrize("pair", [*pairs()], ids=str)
def test_right_programs_have_no_note(pair):
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pair.args())
    assert not notes(check(pair.right, *args, mesh=pair.mesh))

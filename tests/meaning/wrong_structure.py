"""Wrong programs: square arrays with one row per device, loops, stencils, pipelines, attention."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

from .wrong import BYTES, GRID, INDEX, NAN, RNG, SMALL, V, X, at, wrong

SQUARE = RNG.normal(size=(4, 4)).astype(np.float32)
CUBE = RNG.normal(size=(4, 4, 4)).astype(np.float32)
LONG = RNG.normal(size=(16, 8)).astype(np.float32)
W = RNG.normal(size=(4, 8, 8)).astype(np.float32) / 3
ROWS = P("a")


def around(step=1):
    """Return the permutation of a ring."""
    n = lax.axis_size("a")
    return [(i, (i + step) % n) for i in range(n)]


# --- dimensions of the same size, one row for each device


@wrong(SQUARE, outs=P(None, "a"))
def a_transpose_that_is_not_one(x):
    return x.reshape(-1, x.shape[0])


@wrong(SQUARE, outs=ROWS)
def an_exchange_that_transposes(x):
    return lax.all_to_all(x, "a", 1, 0, tiled=True).reshape(x.shape)


@wrong(SQUARE, outs=P("a", None))
def rows_returned_as_columns(x):
    return lax.all_gather(x, "a", axis=1, tiled=True).reshape(-1, 4)[: x.shape[0]]


@wrong(SQUARE)
def gathered_along_the_other_dimension(x):
    return lax.all_gather(x.T, "a", tiled=True).reshape(4, 4)


@wrong(SQUARE, SQUARE.T.copy(), ins=(P("a"), P(None, "a")))
def contracted_over_parts_that_do_not_belong_together(x, y):
    return lax.psum(x.reshape(-1) @ y.reshape(-1), "a")


@wrong(SQUARE, SQUARE, ins=(P(None, "a"), P(None, "a")), outs=P(None, "a"))
def a_product_of_columns_with_columns(x, y):
    return x @ y[: x.shape[1]]


@wrong(SQUARE, outs=P("a"))
def the_diagonal_of_parts(x):
    return jnp.diagonal(x)[: x.shape[0]] if x.shape[0] == 4 else x[:, 0]


@wrong(CUBE, ins=P("a", "b"), outs=P("b", "a"), sizes={"a": 2, "b": 2})
def two_dimensions_swapped_in_out_specs(x):
    return x + 1


@wrong(CUBE, ins=P(None, ("a", "b")), outs=P(None, "a", "b"), sizes=GRID)
def one_cut_declared_as_two(x):
    return x.reshape(4, -1, 2)[:, :2, :] if x.shape[1] == 1 else x.reshape(4, 4, 4)


@wrong(SQUARE, outs=ROWS)
def each_row_in_the_place_of_the_next(x):
    return lax.dynamic_slice(
        lax.all_gather(x, "a", tiled=True),
        ((at() + 1) % lax.axis_size("a") * x.shape[0], 0),
        x.shape,
    )


@wrong(SQUARE)
def a_sum_over_the_other_dimension(x):
    return lax.psum(x.sum(1).sum(), "a") + lax.pmax(x.sum(1)[0], "a")


@wrong(SQUARE, outs=ROWS)
def rows_in_reverse_within_a_part(x):
    return x[::-1] * 2


@wrong(SQUARE)
def sums_gathered_of_sums(x):
    return lax.all_gather(x.sum(0), "a").sum(1)[:4] if x.shape[0] == 1 else x.sum(0)


# --- axes


@wrong(X, ins=P("a", "b"), outs=P("a"), sizes=GRID)
def a_mean_over_the_wrong_axis(x):
    return lax.pmean(x.mean(1), "a")


@wrong(X, ins=P("a", "b"), sizes=GRID)
def a_mean_over_one_axis_and_a_sum_over_the_other(x):
    return lax.psum(lax.pmean(x.sum(), "a"), "b")


@wrong(X, ins=P(("a", "b")), outs=P(("a", "b")), sizes=GRID)
def coordinates_in_another_order(x):
    rank = at("b") * lax.axis_size("a") + at("a")
    return x + (rank * x.shape[0] + jnp.arange(x.shape[0]))[:, None]


@wrong(X, ins=P(("a", "b")), outs=P(("a", "b")), sizes=GRID)
def coordinates_of_one_axis(x):
    return x + (at("a") * x.shape[0] + jnp.arange(x.shape[0]))[:, None]


@wrong(V)
def sums_within_groups(x):
    n = lax.axis_size("a")
    groups = [list(range(n // 2)), list(range(n // 2, n))] if n > 1 else None
    return lax.psum(x.sum(), "a", axis_index_groups=groups)


@wrong(V)
def the_number_of_devices_is_summed(x):
    return lax.psum(x.sum(), "a") / lax.psum(1.0, "a")


@wrong(V)
def a_weight_by_coordinate(x):
    return lax.psum(x.sum() * (at() + 1), "a")


@wrong(V)
def only_the_first_device_counts(x):
    return lax.psum(jnp.where(at() == 0, x.sum(), 0.0), "a")


@wrong(V)
def a_number_in_place_of_shares(x):
    return lax.psum(jnp.where(x.sum() > 3, x.sum(), 5.0), "a")


@wrong(V)
def a_constant_added_to_a_share(x):
    return lax.psum(x.sum() + 1, "a")


@wrong(X, V, ins=(P(None, "a"), P("a")))
def a_bias_added_before_the_sum(x, w):
    return lax.psum(x @ w + jnp.arange(8.0), "a")


@wrong(X)
def a_maximum_times_minus_one(x):
    return -lax.pmax(-x.max(), "a")


@wrong(X)
def a_sum_of_maxima(x):
    return lax.psum(x.max(0), "a")


@wrong(X)
def the_smallest_of_the_largest(x):
    return lax.pmin(x.max(0), "a")


@wrong(X)
def the_largest_of_absolute_sums(x):
    return lax.pmax(jnp.abs(x.sum(0)), "a")


@wrong(X.astype(np.complex64) * (1 + 2j))
def the_length_of_complex_shares(x):
    return lax.psum(jnp.abs(x.sum()), "a")


@wrong(X.astype(np.complex64) * (1 + 2j))
def conjugates_in_a_product_of_shares(x):
    part = x.sum()
    return (lax.psum(part, "a") * lax.psum(jnp.conj(part) * part, "a")).real


# --- loops


@wrong(LONG)
def overlapping_slices(x):
    m = x.shape[0] // 4
    return lax.psum(sum((x[i * m : (i + 1) * m + 1] ** 2).sum() for i in range(4)), "a")


@wrong(LONG)
def slices_without_the_last(x):
    n = lax.axis_size("a")
    m = x.shape[0] // 4
    return lax.psum(sum((x[i * m : (i + 1) * m] ** 2).sum() for i in range(4 - (n > 1))), "a")


@wrong(LONG)
def squares_of_sums_of_microbatches(x):
    rows = x.reshape(4, -1, 8)
    return lax.psum(lax.scan(lambda c, r: (c + r.sum() ** 2, None), 0.0, rows)[0], "a")


@wrong(LONG)
def microbatches_that_are_weighted(x):
    rows = x.reshape(4, -1, 8)
    return lax.psum(lax.scan(lambda c, r: (c * 0.9 + r.sum(), None), 0.0, rows)[0], "a")


@wrong(LONG)
def microbatches_counted_from_zero(x):
    rows = x.reshape(4, -1, 8)

    def step(c, r):
        i, total = c
        return (i + 1, total + i * r.sum()), None

    return lax.psum(lax.scan(step, (0, 0.0), rows)[0][1], "a")


@wrong(LONG)
def the_largest_microbatch(x):
    rows = x.reshape(4, -1, 8)
    return lax.pmax(lax.scan(lambda c, r: (jnp.maximum(c, r.sum()), None), -9.0, rows)[0], "a")


@wrong(LONG)
def the_last_microbatch(x):
    rows = x.reshape(4, -1, 8)
    return lax.psum(lax.scan(lambda c, r: (r.sum(), None), 0.0, rows)[0], "a")


@wrong(SMALL)
def a_narrow_total_in_a_loop(x):
    total = lax.scan(lambda c, r: (c + r * 5, None), np.int8(0), x)[0]
    return lax.psum(total.astype(jnp.int32), "a")


@wrong(BYTES)
def a_narrow_counter_in_a_loop(x):
    total = lax.fori_loop(0, 90, lambda i, c: c + np.uint8(x.size), np.uint8(0))
    return total.astype(jnp.int32)


@wrong(X, outs=ROWS)
def a_loop_over_features_that_mixes_rows(x):
    return lax.scan(lambda c, r: (c + r, c + r), jnp.zeros(8), x)[1]


@wrong(X, outs=ROWS)
def a_loop_in_reverse(x):
    return lax.scan(lambda c, r: (c * 0.5 + r, c), jnp.zeros(8), x, reverse=True)[1]


@wrong(X, outs=ROWS)
def an_associative_scan_of_parts(x):
    return lax.associative_scan(jnp.add, x)


@wrong(X)
def a_loop_that_exchanges_too_often(x):
    n = lax.axis_size("a")

    def step(i, c):
        total, x = c
        return total + x.sum(0), lax.ppermute(x, "a", around())

    return lax.fori_loop(0, n + (n > 1), step, (jnp.zeros(8), x))[0]


@wrong(V)
def a_loop_whose_length_is_the_number_of_devices(x):
    return lax.fori_loop(0, lax.axis_size("a"), lambda i, c: c * 0.5, lax.psum(x.sum(), "a"))


@wrong(V)
def a_power_by_loop(x):
    return lax.psum(lax.fori_loop(0, 3, lambda i, c: c * 2, x.sum()) ** 2, "a")


@wrong(V)
def a_while_loop_until_the_sum_is_large(x):
    def go(c):
        return c[0] < 50

    return lax.psum(lax.while_loop(go, lambda c: (c[0] + x.sum() + 1, c[1] + 1), (0.0, 0))[1], "a")


# --- stencils and pipelines


def stencil(x, left, right):
    """Return a step with halos."""
    padded = jnp.concatenate([left, x, right])
    return (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4


@wrong(V**2, outs=ROWS)
def halos_from_the_wrong_side(x):
    left = lax.ppermute(x[-1:], "a", around(-1))
    right = lax.ppermute(x[:1], "a", around(1))
    return stencil(x, left, right)


@wrong(V**2, outs=ROWS)
def halos_that_are_the_first_row(x):
    left = lax.ppermute(x[:1], "a", around(1))
    right = lax.ppermute(x[:1], "a", around(-1))
    return stencil(x, left, right)


@wrong(V**2, outs=ROWS)
def halos_that_are_not_renewed(x):
    left = lax.ppermute(x[-1:], "a", around(1))
    right = lax.ppermute(x[:1], "a", around(-1))
    return lax.fori_loop(0, 3, lambda i, x: stencil(x, left, right), x)


@wrong(V**2 + 1, outs=ROWS)
def halos_of_zeros_between_devices(x):
    n = lax.axis_size("a")
    left = lax.ppermute(x[-1:], "a", [(i, i + 1) for i in range(0, n - 1, 2)])
    right = lax.ppermute(x[:1], "a", [(i + 1, i) for i in range(n - 1)])
    return stencil(x, left, right)


@wrong(V**2, outs=ROWS)
def one_exchange_for_two_steps(x):
    def step(x, _):
        left = lax.ppermute(x[-1:], "a", around(1))
        right = lax.ppermute(x[:1], "a", around(-1))
        return stencil(stencil(x, left, right), left, right), None

    return lax.scan(step, x, None, length=2)[0]


def through(ws, x):
    """Return `x` after all layers."""
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]


@wrong(W, X, ins=(P("a"), P()), reference=lambda w, x: through(w, x))
def stages_in_another_order(w, x):
    for _ in range(lax.axis_size("a")):
        x = lax.ppermute(through(w, x), "a", around(-1))
    return x


@wrong(W, X, ins=(P("a"), P()), reference=lambda w, x: through(w, x))
def one_stage_too_few(w, x):
    for _ in range(lax.axis_size("a") - 1):
        x = lax.ppermute(through(w, x), "a", around(1))
    return x


@wrong(W, X, ins=(P("a"), P()), reference=lambda w, x: through(w, x))
def the_result_of_another_stage(w, x):
    for _ in range(lax.axis_size("a")):
        x = lax.ppermute(through(w, x), "a", around(1))
    return lax.psum(jnp.where(at() == 1, x, 0), "a")


@wrong(W, X, ins=(P("a"), P()), reference=lambda w, x: through(w, x))
def stages_that_are_added_up(w, x):
    return lax.psum(through(w, x), "a")


# --- attention and tables


def attend(q, k, v, mask=None):
    """Return plain attention."""
    s = q @ k.T
    s = s if mask is None else jnp.where(mask, s, -jnp.inf)
    return jax.nn.softmax(s, axis=-1) @ v


@wrong(X, X, X, ins=(P("a"),) * 3, outs=ROWS, reference=lambda q, k, v: attend(q, k, v))
def attention_to_the_own_part(q, k, v):
    return attend(q, k, v)


@wrong(X, X, X, ins=(P("a"),) * 3, outs=ROWS, reference=lambda q, k, v: attend(q, k, v))
def a_ring_without_rescaling(q, k, v):
    out, total = jnp.zeros_like(q), jnp.zeros(q.shape[0])
    for _ in range(lax.axis_size("a")):
        s = q @ k.T
        p = jnp.exp(s - s.max(-1, keepdims=True))
        out, total = out + p @ v, total + p.sum(-1)
        k, v = (lax.ppermute(x, "a", around()) for x in (k, v))
    return out / total[:, None]


@wrong(X, X, X, ins=(P("a"),) * 3, outs=ROWS, reference=lambda q, k, v: attend(q, k, v))
def a_ring_that_passes_on_keys_only(q, k, v):
    out, total = jnp.zeros_like(q), jnp.zeros(q.shape[0])
    for _ in range(lax.axis_size("a")):
        p = jnp.exp(q @ k.T)
        out, total = out + p @ v, total + p.sum(-1)
        k = lax.ppermute(k, "a", around())
    return out / total[:, None]


def causal(q, k, v):
    """Return attention to the rows up to the own one."""
    return attend(q, k, v, np.tril(np.ones((8, 8), bool)))


@wrong(X, X, X, ins=(P("a"), P(), P()), outs=ROWS, reference=causal)
def a_causal_mask_by_local_rows(q, k, v):
    return attend(q, k, v, jnp.arange(q.shape[0])[:, None] >= jnp.arange(8)[None])


@wrong(X, X, X, ins=(P("a"), P(), P()), outs=ROWS, reference=causal)
def a_causal_mask_that_excludes_the_diagonal(q, k, v):
    rows = at() * q.shape[0] + jnp.arange(q.shape[0]) + 1
    return attend(q, k, v, rows[:, None] >= jnp.arange(8)[None])


@wrong(X, X, X, ins=(P("a"),) * 3, outs=ROWS, reference=lambda q, k, v: attend(q, k, v))
def scores_scaled_by_the_local_length(q, k, v):
    k, v = (lax.all_gather(x, "a", tiled=True) for x in (k, v))
    return attend(q / q.shape[0], k, v)


@wrong(X, INDEX, ins=(P("a"), P()), reference=lambda t, i: t[i])
def rows_of_a_table_that_all_devices_clip(t, i):
    local = jnp.clip(i - at() * t.shape[0], 0, t.shape[0] - 1)
    return lax.psum(t[local], "a")


@wrong(X, INDEX, ins=(P("a"), P()), reference=lambda t, i: t[i])
def rows_of_a_table_by_remainder(t, i):
    mine = i // t.shape[0] == at()
    return lax.psum(jnp.where(mine[:, None], t[i % (t.shape[0] - 1)], 0), "a")


@wrong(X, INDEX, ins=(P(), P()), outs=ROWS, reference=lambda x, i: jnp.zeros((8, 8)).at[i].add(x))
def rows_added_with_a_mask_that_overlaps(x, i):
    size = 8 // lax.axis_size("a")
    local = i - at() * size
    mine = (local >= 0) & (local <= size)
    rows = jnp.where(mine[:, None], x, 0)
    return jnp.zeros((size, 8)).at[jnp.clip(local, 0, size - 1)].add(rows)


@wrong(X, INDEX, ins=(P("a"), P("a")), reference=lambda x, i: jax.ops.segment_sum(x, i, 8))
def segments_of_local_numbers(x, i):
    return lax.psum(jax.ops.segment_sum(x, i % x.shape[0], 8), "a")


@wrong(X[0], np.array([0.3, -0.2], np.float32), ins=(P("a"), P()))
def places_in_sorted_parts(x, q):
    return lax.psum(jnp.searchsorted(jnp.sort(x)[:1], q), "a")


@wrong(np.array([3, 3, 0, 1, 3, 2, 3, 0], np.int32))
def one_hot_of_shifted_labels(i):
    return lax.psum(jax.nn.one_hot(i - at(), 4).sum(0), "a")


# --- padding and matrices


@wrong(np.arange(10, dtype=np.float32), ins=P(), reference=lambda x: x.mean())
def a_mean_that_counts_padding(x):
    padded = jnp.pad(x, (0, 2))
    size = 12 // lax.axis_size("a")
    return lax.pmean(lax.dynamic_slice(padded, (at() * size,), (size,)).mean(), "a")


@wrong(V[:5].repeat(2), ins=P(), reference=lambda x: jnp.exp(x).sum())
def exponentials_that_count_padding(x):
    padded = jnp.pad(x, (0, 2))
    size = 12 // lax.axis_size("a")
    return lax.psum(jnp.exp(lax.dynamic_slice(padded, (at() * size,), (size,))).sum(), "a")


@wrong(np.arange(10, dtype=np.float32), ins=P(), reference=lambda x: x * 2)
def padding_removed_at_the_wrong_end(x):
    padded = jnp.pad(x, (0, 2))
    size = 12 // lax.axis_size("a")
    part = lax.dynamic_slice(padded, (at() * size,), (size,))
    return lax.all_gather(part * 2, "a", tiled=True)[2:]


@wrong(-np.arange(1, 11, dtype=np.float32), ins=P(), reference=lambda x: x.max())
def a_maximum_with_padding(x):
    padded = jnp.pad(x, (0, 2))
    size = 12 // lax.axis_size("a")
    return lax.pmax(lax.dynamic_slice(padded, (at() * size,), (size,)).max(), "a")


@wrong(SQUARE + 4 * np.eye(4, dtype=np.float32), outs=ROWS, reference=jnp.linalg.inv)
def inverses_of_parts(x):
    return jnp.linalg.pinv(x).T


@wrong(CUBE)
def a_determinant_of_a_sum_of_parts(x):
    return lax.psum(jnp.linalg.det(x.sum(0)), "a")


@wrong(X, X, ins=(P("a"), P()), outs=ROWS)
def a_batch_norm_of_the_own_part(x, y):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3) + y[: x.shape[0]] * 0


@wrong(NAN, outs=ROWS)
def an_imputation_by_the_own_mean(x):
    return jnp.where(jnp.isnan(x), jnp.nanmean(x), x)


@wrong(X, V, ins=(P("a"), P()))
def capacity_for_each_device(x, w):
    chosen = (x @ w) > 0
    place = jnp.cumsum(chosen) - 1
    return lax.psum(jnp.where((place < 1) & chosen, x.sum(1), 0).sum(), "a")


@wrong(X, V, ins=(P("a"), P()))
def weights_decayed_by_each_device(x, w):
    return lax.psum(jax.grad(lambda w: ((x @ w) ** 2).sum() + (w**2).sum())(w), "a")


@wrong(X, V, ins=(P("a"), P()))
def a_global_norm_of_shares(x, w):
    g = jax.grad(lambda w: ((x @ w) ** 2).sum())(w)
    return lax.psum(g / jnp.maximum(1.0, jnp.linalg.norm(g)), "a")


@wrong(X, outs=ROWS)
def dropout_with_one_key(x):
    return jnp.where(jax.random.bernoulli(jax.random.key(3), 0.5, x.shape), x, 0.0)


@wrong(V)
def a_choice_with_the_own_numbers(x):
    return lax.psum(jax.random.choice(jax.random.key(3), x, (2,)), "a")


@wrong(np.arange(8, dtype=np.uint32))
def keys_of_the_own_seeds(x):
    draw = jax.random.normal(jax.random.key(x[0]), (2,))
    return lax.psum(draw, "a")


@functools.partial(jax.custom_jvp, nondiff_argnums=())
def summed(x):
    """Return the sum over devices, with a derivative that is each device's own."""
    return lax.psum(x, "a")


summed.defjvp(lambda p, t: (summed(*p), t[0] * lax.axis_size("a")))


@wrong(X, V, ins=(P("a"), P()))
def a_tangent_that_is_scaled(x, w):
    return lax.psum(jax.jvp(lambda w: summed((x @ w).sum()), (w,), (w,))[1], "a")

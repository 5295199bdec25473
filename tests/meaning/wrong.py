"""Wrong programs, small: each gives other results on several devices than on one.

They were written against the rules, by reading each rule for what it does not say: values that are
NaN, infinite, tied or out of range, integers that wrap around, dimensions of size 0 and 1, masks
that are off by one, collectives over the wrong axes. The arguments show the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

SPLIT, WHOLE = P("a"), P()
LINE, GRID = {"a": 4}, {"a": 2, "b": 2}
RNG = np.random.default_rng(7)
X = RNG.normal(size=(8, 8)).astype(np.float32)
ROWS = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
NAN = np.where(np.arange(64).reshape(8, 8) % 37 == 3, np.nan, ROWS).astype(np.float32)
"""With NaN in the first and in the sixth row."""
INF = np.where(np.arange(64).reshape(8, 8) == 3, np.inf, ROWS + 1).astype(np.float32)
V = np.arange(8, dtype=np.float32)
BYTES = np.array([200, 100, 70, 250, 7, 90, 240, 255], np.uint8)
SMALL = np.array([100, 100, -3, -120, 7, 90, -128, 127], np.int8)
INDEX = np.array([7, 0, 5, 2, 2, 6, 1, 3], np.int32)
TRUE = np.ones(8, bool)


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A program, and the arguments for which it is wrong."""

    body: Callable[..., Any]
    args: Sequence[Any]
    ins: Any
    outs: Any
    sizes: dict[str, int]
    reference: Callable[..., Any] | None = None

    def __call__(self, *args: Any, mesh: Any) -> Any:
        """Return the result on a mesh."""
        specs = {"in_specs": self.ins, "out_specs": self.outs}
        return jax.shard_map(self.body, mesh=mesh, check_vma=False, **specs)(*args)


WRONG: dict[str, Wrong] = {}


def wrong(
    *args: Any,
    ins: Any = SPLIT,
    outs: Any = WHOLE,
    sizes: dict[str, int] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter the body of a `shard_map`."""

    def enter(body: Callable[..., Any]) -> Callable[..., Any]:
        row = Wrong(body, args, ins, outs, sizes or LINE, reference)
        WRONG[body.__name__.replace("_", " ")] = row
        return body

    return enter


def at(axis: str = "a") -> Any:
    """Return the device's coordinate."""
    return lax.axis_index(axis)


# --- NaN, infinity, signed zero


@wrong(NAN)
def maximum_of_parts_with_nan_replaced(x):
    return lax.pmax(jnp.where(jnp.isnan(x.max()), 0.0, x.max()), "a")


@wrong(NAN)
def a_mean_that_skips_nan_by_device(x):
    return lax.pmean(jnp.nanmean(x), "a")


@wrong(NAN)
def nan_to_num_before_the_sum_of_parts(x):
    return lax.psum(jnp.nan_to_num(x.sum(0)), "a")


@wrong(NAN)
def count_of_devices_with_nan(x):
    return lax.psum(jnp.isnan(x.sum()).astype(jnp.float32), "a")


@wrong(NAN)
def the_own_minimum_of_nan_is_tested_through_a_sum(x):
    return jnp.isnan(lax.pmin(x.min(), "a") * 2 + 1).astype(jnp.float32)


@wrong(NAN)
def argmax_of_a_maximum_over_devices(x):
    top = lax.pmax(x.max(), "a")
    return jnp.argmax(jnp.stack([jnp.float32(100), top]))


@wrong(NAN)
def a_maximum_over_devices_becomes_a_truth(x):
    return (lax.pmax(jnp.minimum(x.max(), 0.0), "a")).astype(bool)


@wrong(NAN)
def a_maximum_over_devices_sorted(x):
    top = lax.pmax(x.max(), "a")
    return jnp.sort(jnp.stack([jnp.float32(5), top, jnp.float32(-1)]))[2]


@wrong(NAN)
def nan_of_a_maximum_over_devices_plus_data(x):
    return jnp.isnan(lax.pmax(x.max(), "a") + lax.psum(x[:, 7].sum(), "a")).astype(jnp.float32)


@wrong(NAN)
def a_comparison_of_a_scaled_maximum_over_devices(x):
    return jnp.where(2 * lax.pmax(x.max(), "a") + 1 > 0, 1.0, 2.0)


@wrong(NAN)
def a_maximum_over_devices_minus_itself(x):
    top = lax.pmax(x.max(), "a") + 1
    return jnp.where(top - top == 0, 1.0, 2.0)


@wrong(INF)
def infinity_times_the_coordinate(x):
    return lax.psum(x[:, 7].sum() * at(), "a") * jnp.ones(2)


@wrong(INF)
def infinities_that_cancel_on_one_device(x):
    return lax.psum(jnp.where(jnp.isinf(x.sum()), 0.0, x.sum()), "a")


GATHER = lax.GatherDimensionNumbers((), (0,), (0,))


@wrong(INDEX, ins=P())
def a_gather_from_zeros_that_fills(i):
    table = jnp.zeros(8 // lax.axis_size("a"))
    return lax.gather(table, i[:, None], GATHER, (1,), mode="fill")


@wrong(INDEX, ins=P())
def a_lookup_in_zeros_outside_of_the_own_rows(i):
    table = jnp.zeros(8 // lax.axis_size("a"))
    return table.at[i].get(mode="fill")


@wrong(V, INDEX, ins=(P("a"), P()))
def a_lookup_in_the_own_rows_that_fills(x, i):
    return lax.psum(x.at[i].get(mode="fill", fill_value=0.0), "a")


@wrong(V, INDEX, ins=(P("a"), P()))
def a_lookup_in_the_own_rows_that_clips(x, i):
    return lax.pmax(x.at[i].get(mode="clip"), "a")


@wrong(V - 8, INDEX, ins=(P("a"), P()))
def a_maximum_over_devices_of_rows_that_are_filled_with_zero(x, i):
    mine = (i >= at() * x.size) & (i < (at() + 1) * x.size)
    return lax.pmax(jnp.where(mine, x[jnp.clip(i - at() * x.size, 0, x.size - 1)], 0.0), "a")


# --- integers


@wrong(BYTES)
def a_sum_of_bytes_becomes_wide_by_device(x):
    return lax.psum(lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None).astype(jnp.int32), "a")


@wrong(BYTES)
def bytes_added_before_they_are_compared(x):
    part = lax.reduce(x, np.uint8(0), lax.add, (0,))
    return lax.psum((part > 200).astype(jnp.int32), "a")


@wrong(SMALL)
def a_product_of_narrow_integers_becomes_wide(x):
    return lax.psum(jnp.dot(x * 3, x, preferred_element_type=jnp.int8).astype(jnp.int32), "a")


@wrong(BYTES)
def differences_of_unsigned_numbers(x):
    gap = lax.reduce(x - np.uint8(100), np.uint8(0), lax.max, (0,))
    return lax.psum(gap.astype(jnp.int32), "a")


@wrong(BYTES)
def half_of_a_sum_of_integers(x):
    return lax.psum(x.astype(jnp.int32).sum() // 2, "a")


@wrong(BYTES)
def remainder_of_parts(x):
    return lax.psum(x.astype(jnp.int32).sum() % 7, "a")


@wrong(V + 0.5)
def truncated_parts(x):
    return lax.psum((x.sum() / 3).astype(jnp.int32), "a")


@wrong(V + 0.3)
def rounded_parts(x):
    return lax.psum(jnp.round(x.sum()), "a")


@wrong(TRUE)
def a_sum_of_booleans_by_any(x):
    return lax.psum(x.any().astype(jnp.int32), "a")


@wrong(TRUE)
def a_matrix_product_of_booleans(x):
    return lax.psum(jnp.dot(x, x).astype(jnp.int32), "a")


@wrong(BYTES)
def parity_of_parts(x):
    return lax.pmax(lax.reduce(x, np.uint8(0), lax.bitwise_xor, (0,)), "a")


@wrong(BYTES)
def bits_of_parts_that_all_have(x):
    return lax.psum(lax.reduce(x, np.uint8(255), lax.bitwise_and, (0,)).astype(jnp.int32), "a")


@wrong(np.ones(512, np.float32), outs=P("a"), reference=lambda x: jnp.arange(512.0) * x)
def positions_in_a_byte(x):
    rows = at().astype(jnp.uint8) * np.uint8(x.size) + jnp.arange(x.size, dtype=jnp.uint8)
    return rows.astype(jnp.float32) * x


@wrong(np.arange(1024, dtype=np.float32), ins=P(), outs=P("a"))
def a_slice_at_a_narrow_place(x):
    start = at().astype(jnp.uint8) * np.uint8(x.size // lax.axis_size("a") % 256)
    return lax.dynamic_slice(x, (start,), (x.size // lax.axis_size("a"),))


# --- positions, clamping, masks


@wrong(V, ins=P(), outs=P("a"))
def a_slice_that_is_clamped(x):
    size = x.size // lax.axis_size("a")
    return lax.dynamic_slice(x, (at() * size + 1,), (size,))


@wrong(V, outs=P("a"))
def a_slice_of_the_own_part_at_a_global_place(x):
    return lax.dynamic_slice(x, (at() * x.size,), (x.size,)) + lax.dynamic_slice(x, (at(),), (1,))


@wrong(V)
def parts_written_one_too_far(x):
    whole = jnp.zeros(x.size * lax.axis_size("a"))
    place = at() * x.size + (at() > 0)
    return lax.psum(lax.dynamic_update_slice(whole, x, (place,)), "a")


@wrong(V, ins=P())
def everyone_writes_everything(x):
    return lax.psum(jnp.zeros(16).at[jnp.arange(8) + at()].set(x), "a")


@wrong(V, INDEX, ins=(P("a"), P()))
def a_mask_with_one_row_too_many(x, i):
    local = i - at() * x.size
    mine = (local >= 0) & (local <= x.size)
    return lax.psum(jnp.where(mine, x[jnp.clip(local, 0, x.size - 1)], 0), "a")


@wrong(V, INDEX, ins=(P("a"), P()))
def a_mask_without_the_first_row(x, i):
    local = i - at() * x.size
    mine = (local > 0) & (local < x.size)
    return lax.psum(jnp.where(mine, x[jnp.clip(local, 0, x.size - 1)], 0), "a")


@wrong(V, INDEX, ins=(P("a"), P()))
def a_lookup_in_the_next_row(x, i):
    local = i - at() * x.size
    mine = (local >= 0) & (local < x.size)
    return lax.psum(jnp.where(mine, x[jnp.clip(local + 1, 0, x.size - 1)], 0), "a")


@wrong(V + 1, INDEX, ins=(P("a"), P()))
def a_mask_that_wraps_around(x, i):
    local = (i - at() * x.size) % (x.size + 1)
    return lax.psum(jnp.where(local < x.size, x[jnp.minimum(local, x.size - 1)], 0), "a")


@wrong(V, INDEX, ins=(P(), P("a")))
def rows_added_at_indices_of_the_part(x, i):
    return lax.psum(jnp.zeros(8).at[i - at()].add(x[: i.size]), "a")


@wrong(X, INDEX, ins=(P("a"), P("a")))
def the_last_of_duplicates_on_each_device(x, i):
    return lax.pmax(jnp.zeros((4, 8)).at[i % 4].set(x), "a")


@wrong(X, INDEX, ins=(P("a"), P("a")))
def maxima_by_index_are_added_up(x, i):
    return lax.psum(jnp.zeros((4, 8)).at[i % 4].max(x), "a")


@wrong(X, INDEX, ins=(P("a"), P("a")))
def products_by_index_are_added_up(x, i):
    return lax.psum(jnp.ones((4, 8)).at[i % 4].multiply(x), "a")


@wrong(V, INDEX, ins=(P("a"), P("a")), outs=P("a"))
def a_lookup_of_global_rows_in_the_own_part(x, i):
    return x[i]


@wrong(V, ins=P("a"), outs=P("a"))
def a_causal_mask_with_local_positions(x):
    rows = jnp.arange(x.size)
    return jnp.where(rows[:, None] >= jnp.arange(8)[None], x[:, None], 0.0)


@wrong(V, outs=P("a"))
def neighbours_without_a_halo(x):
    return x + jnp.roll(x, 1)


# --- order: ties, sorting, top


@wrong(np.array([1, 5, 5, 2, 5, 0, 3, 5], np.float32))
def the_position_of_the_largest_by_device(x):
    return lax.pmax(jnp.argmax(x) + at() * x.size, "a")


@wrong(np.array([1, 5, 5, 2, 5, 0, 3, 5], np.float32))
def the_last_of_tied_positions(x):
    top = lax.pmax(x.max(), "a")
    place = jnp.where(x.max() == top, jnp.argmax(x) + at() * x.size, -1)
    return lax.pmax(place, "a")


@wrong(X[0], outs=P("a"))
def sorted_parts(x):
    return jnp.sort(x)


@wrong(X[0])
def the_median_of_medians(x):
    return lax.pmean(jnp.median(x), "a")


@wrong(X[0], outs=P("a"))
def ranks_within_a_part(x):
    return jnp.argsort(jnp.argsort(x))


@wrong(X[0], outs=P("a"))
def a_running_sum_of_parts(x):
    return jnp.cumsum(x)


@wrong(X[0], outs=P("a"))
def a_running_sum_with_the_own_total_added(x):
    totals = lax.all_gather(x.sum(), "a")
    before = jnp.where(jnp.arange(totals.size) <= at(), totals, 0).sum()
    return jnp.cumsum(x) + before


@wrong(X[0], outs=P("a"))
def a_running_maximum_of_parts(x):
    return lax.cummax(x)


@wrong(np.abs(X[0]), outs=P("a"))
def a_running_product_of_parts(x):
    return lax.cumprod(x)


# --- collectives over the wrong axes, of the wrong thing


@wrong(X, ins=P("a", "b"), sizes=GRID)
def a_sum_over_one_of_two_axes(x):
    return lax.psum(x.sum(), "a")


@wrong(X, ins=P(("a", "b")), outs=P(("b", "a")), sizes=GRID)
def parts_joined_in_another_order(x):
    return x * 2


@wrong(X, ins=P(("a", "b")), sizes=GRID)
def parts_gathered_in_another_order(x):
    return lax.all_gather(x, ("b", "a"), tiled=True)


@wrong(X, outs=P("a"))
def parts_exchanged_but_not_put_back(x):
    return lax.all_to_all(x, "a", 1, 0, tiled=True).reshape(x.shape)


@wrong(X, outs=P(None, "a"))
def an_exchange_of_the_same_dimension(x):
    y = lax.all_to_all(x.reshape(1, -1), "a", 1, 0, tiled=True)
    return y.reshape(8, -1)


@wrong(X)
def a_ring_with_one_step_too_few(x):
    total, n = x.sum(0), lax.axis_size("a")
    for _ in range(n - 2):
        x = lax.ppermute(x, "a", [(i, (i + 1) % n) for i in range(n)])
        total = total + x.sum(0)
    return total


@wrong(X)
def a_ring_that_is_a_line(x):
    total, n = x.sum(0), lax.axis_size("a")
    for _ in range(n - 1):
        x = lax.ppermute(x, "a", [(i, i + 1) for i in range(n - 1)])
        total = total + x.sum(0)
    return total


@wrong(X, outs=P("a"))
def parts_passed_on_and_kept(x):
    n = lax.axis_size("a")
    return lax.ppermute(x, "a", [(i, (i + 1) % n) for i in range(n)])


@wrong(X)
def scattered_sums_that_are_added_again(x):
    part = lax.psum_scatter(x.sum(0), "a", tiled=True)
    return lax.psum(jnp.tile(part, lax.axis_size("a")), "a")


@wrong(X, outs=P("a"))
def a_scattered_sum_of_a_whole(x):
    whole = lax.all_gather(x, "a", tiled=True)
    return lax.psum_scatter(whole, "a", tiled=True)


@wrong(X, ins=P(None, "a"), outs=P("a"))
def merged_dimensions_of_which_the_second_is_split(x):
    return x.reshape(-1)


@wrong(X, ins=P(None, "a"), outs=P(None, "a"))
def features_split_and_reshaped_into_heads(x):
    return x.reshape(-1, 2 * x.shape[1] // 2).T.reshape(8, -1)


@wrong(X, ins=P("a"), outs=P("a"))
def rows_interleaved(x):
    return x.reshape(2, -1, 8).swapaxes(0, 1).reshape(x.shape)


@wrong(X)
def a_mean_of_squares_of_means(x):
    return lax.pmean(x.mean() ** 2, "a")


@wrong(X)
def a_variance_of_parts(x):
    return lax.pmean(x.var(), "a")


@wrong(X)
def an_average_of_ratios(x):
    return lax.pmean(x.sum() / jnp.abs(x).sum(), "a")


@wrong(X)
def a_norm_of_parts(x):
    return lax.psum(jnp.linalg.norm(x), "a")


@wrong(X)
def a_logarithm_of_parts(x):
    return lax.psum(jnp.log(jnp.exp(x).sum()), "a")


@wrong(X, outs=P("a"))
def a_softmax_over_parts(x):
    return jax.nn.softmax(x, axis=0)


@wrong(X, outs=P("a"))
def a_softmax_with_the_own_maximum(x):
    raised = jnp.exp(x - x.max(0))
    return raised / lax.psum(raised.sum(0), "a")


@wrong(X)
def a_logsumexp_with_the_own_maximum(x):
    return x.max(0) + jnp.log(lax.psum(jnp.exp(x - x.max(0)).sum(0), "a"))


# --- padding


@wrong(V - 9)
def a_maximum_of_padded_parts(x):
    return lax.pmax(jnp.pad(x, (0, lax.axis_size("a") - 1)).max(), "a")


@wrong(V + 1)
def a_mean_of_padded_parts(x):
    return lax.pmean(jnp.pad(x, (0, lax.axis_size("a") - 1)).mean(), "a")


@wrong(V + 1)
def exponentials_of_padding(x):
    return lax.psum(jnp.exp(jnp.pad(x, (0, 2))).sum(), "a")


@wrong(V, outs=P("a"))
def padded_on_each_device(x):
    return jnp.pad(x, (1, 0))[: x.size]


# --- loops


@wrong(V)
def a_loop_that_ends_by_the_own_data(x):
    return lax.psum(lax.while_loop(lambda c: c < 10, lambda c: c * 2 + 1, x.sum()), "a")


@wrong(V)
def a_loop_that_is_not_linear(x):
    return lax.psum(lax.fori_loop(0, 3, lambda i, c: c * c * 0.1 + 1, x.sum()), "a")


@wrong(V)
def a_loop_with_a_constant_added(x):
    return lax.psum(lax.fori_loop(0, 3, lambda i, c: c * 0.5 + 1, x.sum()), "a")


@wrong(V)
def a_loop_that_adds_to_each_device(x):
    return lax.psum(lax.fori_loop(0, 3, lambda i, c: c + 1.0, x.sum()), "a")


@wrong(V - 3)
def a_loop_of_rectified_shares(x):
    return lax.psum(lax.fori_loop(0, 2, lambda i, c: jax.nn.relu(c), x.sum()), "a")


@wrong(V)
def a_recurrence_over_parts(x):
    return lax.psum(lax.scan(lambda c, row: (c * 0.5 + row, None), 0.0, x)[0], "a")


@wrong(V)
def a_loop_over_the_own_number_of_rows(x):
    return lax.psum(lax.fori_loop(0, x.size, lambda i, c: c + i, 0), "a")


@wrong(V)
def a_loop_with_a_sum_in_it(x):
    return lax.fori_loop(0, 3, lambda i, c: lax.psum(c, "a"), lax.psum(x.sum(), "a"))


@wrong(V)
def a_branch_by_the_own_data(x):
    return lax.psum(lax.cond(x.sum() > 5, lambda x: x * 2, lambda x: x, x.sum()), "a")


@wrong(V)
def a_branch_by_the_own_place(x):
    return lax.psum(lax.cond(at() > 0, lambda x: x * 2, lambda x: x, x.sum()), "a")


# --- derivatives


@jax.custom_vjp
def forgets_the_sum(x):
    return lax.psum(x, "a")


forgets_the_sum.defvjp(lambda x: (forgets_the_sum(x), None), lambda _, g: (g * 2,))


@wrong(V, V, ins=(P("a"), P()))
def a_backward_pass_that_does_not_sum(x, w):
    scale = 1 / lax.axis_size("a")
    return jax.grad(lambda w: forgets_the_sum((x.sum() * w.sum()) ** 2))(w) * scale


@wrong(X, V, ins=(P("a"), P()))
def a_gradient_that_is_averaged(x, w):
    return lax.pmean(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), "a")


@wrong(X, V, ins=(P("a"), P()))
def a_gradient_clipped_before_the_sum(x, w):
    return lax.psum(jnp.clip(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), -0.5, 0.5), "a")


# --- randomness


@wrong(V, outs=P("a"))
def one_key_on_every_device(x):
    return x + jax.random.normal(jax.random.key(0), x.shape)


@wrong(V, outs=P("a"))
def keys_by_device(x):
    return x + jax.random.normal(jax.random.fold_in(jax.random.key(0), at()), x.shape)


@wrong(V, outs=P("a"))
def keys_split_by_the_number_of_devices(x):
    keys = jax.random.split(jax.random.key(0), lax.axis_size("a"))
    return x + jax.random.normal(keys[at()], x.shape)


@wrong(V)
def a_permutation_of_a_part(x):
    return lax.all_gather(jax.random.permutation(jax.random.key(1), x), "a", tiled=True)


# --- dimensions of size 0 and 1


@wrong(V, outs=P("a"))
def one_row_for_each_device_reversed(x):
    return x.reshape(-1, 2)[::-1].reshape(x.shape)


@wrong(np.ones((8, 1), np.float32))
def a_sum_over_a_dimension_of_size_one(x):
    return lax.psum(x.sum(1), "a").sum() * jnp.ones(1) + x.shape[0]


@wrong(V)
def a_maximum_of_no_elements(x):
    empty = x[: x.size // 8 * 8]
    return lax.pmin(lax.reduce(empty, -jnp.inf, lax.max, (0,)), "a")


@wrong(V)
def a_product_of_no_elements(x):
    return lax.psum(jnp.prod(x[:0]), "a")


# --- windows, transforms


@wrong(V, outs=P("a"))
def a_window_across_parts(x):
    return jnp.convolve(x, jnp.ones(3), mode="same")


@wrong(V, outs=P("a"))
def pooling_with_padding(x):
    return lax.reduce_window(x, 0.0, lax.add, (2,), (2,), ((1, 1),))[: x.size // 2]


@wrong(V, outs=P("a"))
def a_dilated_window(x):
    return lax.reduce_window(
        x, 0.0, lax.add, (2,), (2,), "VALID", window_dilation=(2,), base_dilation=(2,)
    )[: x.size // 2]


@wrong(V, outs=P("a"))
def a_transform_of_parts(x):
    return jnp.fft.fft(x).real


@wrong(X, outs=P("a"))
def a_norm_over_features_of_parts(x):
    return x / jnp.sqrt((x**2).mean(0) + 1)

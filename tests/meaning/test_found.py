"""Programs whose meaning was once got wrong: each a way in which a rule can say too much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from .oracle import Meaning, check_meaning

X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
CASES = {}


def case(mesh, ins, outs, *args):
    """Enter the body of a `shard_map`."""

    def enter(body):
        CASES[body.__name__] = (body, mesh, ins, outs, args)
        return body

    return enter


LINE, GRID = {"a": 4}, {"a": 2, "b": 2}


@case(LINE, P("a"), P(), X)
def a_share_that_adds_up_to_zero_is_not_zero(x):
    deviation = x.mean() - lax.pmean(x.mean(), "a")
    return lax.psum(deviation**2, "a"), lax.psum(jnp.exp(deviation), "a")


@case(LINE, P("a"), P("a"), X)
def a_share_that_adds_up_to_zero_is_returned(x):
    return (x.mean() - lax.pmean(x.mean(), "a")).reshape(1)


@case(LINE, P("a"), P(), X)
def a_share_that_adds_up_to_zero_times_a_part(x):
    deviation = x.mean() - lax.pmean(x.mean(), "a")
    return lax.psum(x.sum(0) * deviation, "a")


@case(LINE, P("a"), P(), X)
def a_share_that_adds_up_to_zero_is_written_to(x):
    deviation = x.mean(0) - lax.pmean(x.mean(0), "a")
    return lax.psum(lax.dynamic_update_slice(deviation, x[0, :2], (lax.axis_index("a") * 2,)), "a")


@case(GRID, P(("a", "b")), P("b"), X)
def parts_over_another_axis_are_gathered(x):
    return lax.all_gather(x + lax.axis_index("a"), "a", tiled=True)


@case(GRID, P("a", "b"), P(), X)
def a_maximum_is_owed_when_a_sum_is_taken(x):
    return lax.pmax(lax.psum(x.max(0), "b"), "a")


@case(GRID, P("a", "b"), P(), X)
def a_sum_is_owed_when_a_maximum_is_taken(x):
    return lax.psum(lax.pmax(x.sum(0), "b"), "a")


@case(LINE, P("a"), P(), X)
def the_negative_of_a_maximum_that_is_owed(x):
    return lax.pmax(-x.max(0), "a")


@case(LINE, P("a"), P(), X)
def running_sums_of_a_maximum_that_is_owed(x):
    return lax.pmax(jnp.cumsum(x.max(0)), "a")


@case(LINE, P("a"), P(), X)
def window_sums_of_a_maximum_that_is_owed(x):
    out = lax.reduce_window(x.max(0), 0.0, lax.add, (3,), (1,), "VALID")
    return lax.pmax(out, "a")


@case(LINE, P("a"), P(), X)
def rows_of_a_maximum_that_is_owed_added_up(x):
    return lax.pmax(jnp.zeros(3).at[jnp.arange(8) % 3].add(x.max(0)), "a")


@case(LINE, P("a"), P("a"), X)
def a_product_of_products_with_a_factor(x):
    return jnp.prod(3 * jnp.prod(x, axis=1))[None]


@case(LINE, P("a"), P("a"), X)
def one_group_in_another_order(x):
    groups = [[2, 0, 1, 3]]
    return lax.all_gather(x, "a", axis_index_groups=groups, tiled=True)


@case(LINE, P(None, "a"), P("a"), X)
def blocks_exchanged_along_one_dimension(x):
    return lax.all_to_all(x, "a", 0, 0, tiled=True)


@case(LINE, P("a"), P("a"), X[:, :4].repeat(2, 0))
def blocks_exchanged_along_the_dimension_that_is_split(x):
    return lax.all_to_all(x, "a", 0, 0, tiled=True)


@case(GRID, P(("a", "b")), P("b"), X)
def a_permutation_over_two_axes_of_a_share_over_one(x):
    total = lax.psum(x.sum(0), "b")
    moved = lax.ppermute(total, ("a", "b"), [(0, 1), (1, 2), (2, 3), (3, 0)])
    return lax.psum(moved, "a")


@case(LINE, P(None, "a"), P(), X)
def a_part_of_columns_written_to_its_rows(x):
    zeros = jnp.zeros((8, 2))
    return lax.psum(lax.dynamic_update_slice(zeros, x[:2], (lax.axis_index("a") * 2, 0)), "a")


@case(LINE, (P(), P("a")), P("a"), X, np.arange(8))
def bits_of_truth_values_and_of_numbers(x, k):
    truth = k > 3
    return (~truth).astype(jnp.int32) - ~truth.astype(jnp.int32)


@case(LINE, P(), P("a"), X)
def a_slice_at_bits_of_a_coordinate(x):
    i = lax.axis_index("a")
    return lax.dynamic_slice_in_dim(x, ((i | 2) - 2 + (i & 2)) * 2, 2), lax.dynamic_slice_in_dim(
        x, (i & 1) * 4, 4
    )


@case(LINE, P("a"), P("a"), np.random.default_rng(1).normal(size=(4, 4, 4)).astype(np.float32))
def loops_along_different_dimensions(x):
    return lax.scan(lambda c, y: (c + y, c * y), jnp.zeros(4), x[0])


@case(LINE, (P("a"), P()), P(), X, np.array([3, 6, 1, 13, 21, 30, 37]))
def a_masked_lookup_that_leaves_out_a_row(table, index):
    table = jnp.concatenate([table] * 4, axis=0)
    local = index - lax.axis_index("a") * 8
    live = (local >= 0) & (local < 8) & (local != 5)
    return lax.psum(jnp.where(live[:, None], table[jnp.clip(local, 0, 7)], 0.0), "a")


@case(LINE, (P("a"), P()), P(), np.tile(X, (8, 1)), np.array([3, 6, 1, 13, 21, 30, 37]))
def a_masked_lookup_that_leaves_out_a_row_of_the_whole(table, index):
    local = index - lax.axis_index("a") * 16
    live = (local >= 0) & (local < 16) & (local != 5)
    return lax.psum(jnp.where(live[:, None], table[jnp.clip(local, 0, 15)], 0.0), "a")


@case(LINE, (P("a"), P()), P("a"), np.tile(X, (8, 1)), np.array([3, 6, 1, 13, 21, 30, 37, 5]))
def rows_added_by_a_mask_that_leaves_out_one(table, index):
    local = index - lax.axis_index("a") * 16
    live = (local >= 0) & (local < 16) & (local != 5)
    new = jnp.where(live[:, None], jnp.ones((8, 8)), 0.0)
    return jnp.zeros_like(table).at[jnp.clip(local, 0, 15)].add(new)


@case(
    LINE, (P(None, "a"), P()), P(), np.ones((2, 8, 5), np.float32), np.ones((4, 4, 3), np.float32)
)
def a_convolution_with_groups_of_examples(x, k):
    x = jnp.moveaxis(x, 1, 0)
    return lax.conv_general_dilated(x, k[:, :2], (1,), "VALID", batch_group_count=2)


@case(LINE, P(), P("a"), X)
def a_slice_at_the_rest_of_a_coordinate(x):
    i = lax.axis_index("a")
    return lax.dynamic_slice_in_dim(x, lax.rem(i + 4, 4) * 2, 2)


@case(LINE, P("a"), P("a"), X)
def padded_with_each_devices_own(x):
    return lax.pad(x, lax.axis_index("a").astype(x.dtype), [(0, 0, 0), (1, 0, 0)])


@case(LINE, P("a"), P("a"), X)
def a_branch_with_a_sum_over_devices(x):
    k = lax.axis_index("a")
    y = x * k
    return lax.cond(lax.psum(x.sum(), "a") > 0, lambda y: lax.psum(y, "a"), lambda y: 2 * y, y)


@case(LINE, P("a"), P("a"), X)
def a_branch_that_asks_which_device_it_is(x):
    y = x * lax.axis_index("a")

    def ask(y):
        return y + lax.axis_index("a")

    return lax.cond(y.sum() > 0, ask, lambda y: 2 * y, y), lax.cond(x[0, 0] > 0, ask, ask, x)


@case(LINE, P("a"), P("a"), X)
def a_sum_in_groups_of_what_differs(x):
    y = x * lax.axis_index("a")
    return lax.psum(y, "a", axis_index_groups=[[0, 1], [2, 3]])


@case(GRID, P(("a", "b")), P(("a", "b")), X)
def a_loop_over_rows_that_are_split_otherwise(x):
    y = x * lax.axis_index("a")
    return lax.scan(lambda c, r: (c + r, c), jnp.zeros(8), y)[1]


@case(LINE, P("a"), P("a"), X)
def a_loop_of_unknown_length_that_asks_which_device_it_is(x):
    y = x * lax.axis_index("a")

    def step(c):
        return c[0] + 1, c[1] + lax.axis_index("a")

    return lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1], lax.while_loop(
        lambda c: c[0] < 3, step, (0, y)
    )[1]


@case(LINE, P("a"), P("a"), X)
def a_loop_of_no_steps(x):
    return lax.scan(lambda c, r: (c + r, c), x[0], x[:0] * lax.axis_index("a"))[0][None]


@case(LINE, (P(), P("a")), P("a"), X, np.arange(8))
def the_last_bit_of_a_coordinate(x, k):
    i = lax.axis_index("a")
    return (k & 1), (i & 1)[None], (jnp.int32(6) & 3)[None], (i | 0)[None], (k > 3) != (k > 3)


@case(LINE, P("a"), P("a"), X)
def a_ragged_exchange_whose_sizes_alone_differ(x):
    i = lax.axis_index("a")
    place = jnp.zeros(4, jnp.int32)
    sizes = jnp.where(jnp.arange(4) == i, 2, 0).astype(jnp.int32)
    rows = lax.ppermute(jnp.ones((2, 8)) * (i > 1), "a", [(0, 1), (1, 0)])
    return rows + lax.ragged_all_to_all(
        jnp.ones((2, 8)), jnp.zeros((2, 8)), place, sizes, place, sizes, axis_name="a"
    )


@case(LINE, P("a"), P("a"), X)
def a_share_passed_on_beside_what_differs(x):
    k = lax.axis_index("a")
    share = x.sum(0)
    return share * (k == 0), lax.psum(share, "a") * k, lax.ppermute(x * k, "a", [(0, 1), (2, 3)])


@case(LINE, P("a"), P(), np.arange(100, 108, dtype=np.int32))
def sums_whose_upper_bits_are_lost(x):
    return lax.psum(x.sum().astype(jnp.uint8).astype(jnp.int32), "a")


@case(LINE, (P("a"), P()), P(), X, np.array([1, 9, 3]))
def a_share_looked_up_outside_of_the_array(x, index):
    total = x.sum(0)
    found = [total.at[index].get(mode="fill", fill_value=fill) for fill in (0.0, 7.0)]
    return [lax.psum(one, "a") for one in found], x.at[0, index].get(mode="fill", fill_value=3.0)


@case(LINE, P("a"), P("a"), X)
def windows_of_one_that_are_moved(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 1), (1, 1), [(1, -1), (0, 0)])


@case(LINE, P("a"), P("a"), X)
def the_next_device_by_a_remainder(x):
    n = lax.axis_size("a")
    rows = lax.all_gather(x, "a", tiled=True)
    following = (lax.axis_index("a") + 1) % n
    return lax.dynamic_slice_in_dim(rows, following * x.shape[0], x.shape[0])


@case(LINE, P("a"), P("a"), X)
def a_maximum_over_an_axis_of_the_mesh_and_a_dimension_at_once(x):
    return x - jax.vmap(lambda row: lax.pmax(row, ("a", "rows")), axis_name="rows")(x)


def program(body, ins, outs):
    def run(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)(*args)

    return run


@pytest.mark.parametrize("name", CASES)
def test_the_meaning_is_what_devices_hold(name):
    body, sizes, ins, outs, args = CASES[name]
    f, mesh = program(body, ins, outs), sw.mesh(sizes)
    meaning = Meaning(f, args, mesh)
    assert check_meaning(meaning).compared
    apart = Meaning(f, args, mesh, apart="a", run=meaning.run)
    assert check_meaning(apart).compared
    entirely = Meaning(f, args, mesh, apart="a", run=meaning.run, entirely=True)
    assert check_meaning(entirely).compared


NUMBERS = np.array([-9, 300, -1, 3, 5, 11, 0, 2], np.int32)


def _rows(x, index, **how):
    return jnp.take_along_axis(x, index[:, None], 1, **how)


PAIRS = {
    "a number for what is not there, of a multiple": (
        lambda x, k: 2 * _rows(x, k, mode="fill", fill_value=5.0),
        lambda x, k: _rows(2 * x, k, mode="fill", fill_value=5.0),
    ),
    "a number for what is not there, of zeros": (
        lambda x, k: _rows(0 * x, k, mode="fill", fill_value=5.0),
        lambda x, k: 0 * _rows(x, k, mode="clip"),
    ),
    "the smallest whole number for what is not there": (
        lambda x, k: 2 * _rows(x.astype(jnp.int32), k, mode="fill"),
        lambda x, k: _rows(2 * x.astype(jnp.int32), k, mode="fill"),
    ),
    "a maximum with zero and with another number": (
        lambda x, k: -2 * jnp.maximum(x, 0.0),
        lambda x, k: -2 * jnp.maximum(x, -1.0),
    ),
    "whole numbers without their sign": (
        lambda x, k: k.astype(jnp.uint32).astype(jnp.float32),
        lambda x, k: k.astype(jnp.float32),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_programs_that_differ_are_not_proved_equal(name):
    one, other = PAIRS[name]
    args = X, NUMBERS
    assert not np.array_equal(one(*args), other(*args))
    for body, reference in ((one, other), (other, one)):
        f = program(body, P("a"), P("a"))
        assert sw.prove(f, *args, mesh=sw.mesh(a=2), reference=reference).status != "proved"
        assert sw.prove(f, *args, mesh=sw.mesh(a=2), reference=body).status == "proved"


DRAWS = {
    "bits": lambda keys: jax.vmap(jax.random.bits)(keys),
    "split": lambda keys: jax.random.key_data(jax.vmap(jax.random.split)(keys)),
    "folded": lambda keys: jax.random.key_data(
        jax.vmap(jax.random.fold_in)(keys, jax.random.key_data(keys)[:, 0])
    ),
    "one by one": lambda keys: lax.map(jax.random.bits, keys),
}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("name", DRAWS)
def test_keys_that_are_not_drawn_from_one_by_one(name, impl):
    """What JAX draws from several `rbg` keys at once it draws from the first."""
    keys = jax.random.split(jax.random.key(1, impl=impl), 8)
    f = program(DRAWS[name], P("a"), P("a"))
    alone, cut = (sw.simulate(f, mesh=sw.mesh(a=n))(keys) for n in (1, 4))
    status = sw.prove(f, keys, mesh=sw.mesh(a=4)).status
    assert (status == "proved") <= np.array_equal(alone, cut)
    if impl == "threefry2x32" or name == "one by one":
        assert status == "proved"

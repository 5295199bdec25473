"""What devices computed at once make only to sum it is made in one: products, scattered sums."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._jax import sums

from ..support import assert_same, integers, normal, real_mesh

WORDS = 40
IDS = jnp.asarray(integers(16, 6, low=0, high=WORDS))
WEIGHTS = normal(WORDS, 8)


def over_devices(body, shared, split):
    """The body on eight devices: the first argument is the same for all."""
    specs = (P(), P("x"))
    return jax.shard_map(body, mesh=real_mesh(x=8), in_specs=specs, out_specs=P()), (shared, split)


def gradient(loss):
    """Autodiff sums over the devices."""
    return lambda p, own: jax.grad(lambda p: lax.psum(loss(p, own), "x"))(p)


def gradient_by_hand(loss):
    """Summed once it is there."""
    return lambda p, own: lax.psum(jax.grad(loss)(lax.pcast(p, "x", to="varying"), own), "x")


def embedded(table, ids):
    return jnp.sum(jnp.sin(table[ids]) ** 2)


def tied(table, ids):
    return jnp.sum(jnp.tanh(jnp.sin(table[ids]) @ table.T) ** 2)


def halved(table, ids):
    return tied(table.astype(jnp.bfloat16), ids).astype(jnp.float32)


def in_layers(tables, ids):
    start = lax.pcast(0.0, "x", to="varying")
    return lax.scan(lambda x, table: (jnp.sin(x + embedded(table, ids)), None), start, tables)[0]


def along(table, ids):
    """Each row has ids of its own: dimensions of a batch in the scattered sum."""
    return jnp.sum(jnp.cos(jnp.take_along_axis(table, ids[:, :1].T % 8, axis=1)))


def by_segment(_, ids):
    sums = jax.ops.segment_sum(jnp.cos(ids.astype(jnp.float32)), ids[:, 0], WORDS // 2)
    return lax.psum(-sums.reshape(4, -1).T, "x")  # ids from there on are left out


def counted(_, ids):
    return lax.psum(jnp.zeros(WORDS, jnp.int32).at[ids].add(1), "x")


def onto(table, ids):
    return lax.psum(table.at[ids[:, 0]].add(jnp.cos(ids[:, 1:2])), "x")


def apart_from_another(table, ids):
    """Read twice: it has to be made."""
    sums = jnp.zeros(WORDS).at[ids].add(jnp.cos(ids))
    return lax.psum(sums, "x") + lax.pmax(jnp.sum(sums**2), "x")


SCATTERED = {
    "embedded": (gradient(embedded), WEIGHTS),
    "tied": (gradient(tied), WEIGHTS),
    "tied, by hand": (gradient_by_hand(tied), WEIGHTS),
    "in layers": (gradient(in_layers), normal(3, WORDS, 8)),
    "along": (gradient(along), normal(1, 8)),
    "by segment": (by_segment, WEIGHTS),
    "counted": (counted, WEIGHTS),
    "onto": (onto, WEIGHTS),
    "apart from another": (apart_from_another, WEIGHTS),
}


@pytest.mark.parametrize("at_once", [1, 3, 4, 8])
@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_sums_are_what_devices_compute(name, at_once):
    f, args = over_devices(*SCATTERED[name], IDS)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


def through_a_loop(p, own):
    """A value that is the same on every device comes out of a loop with one that is not."""
    start = (lax.pcast(p, "x", to="varying"), own)
    return lax.scan(lambda c, _: ((jnp.sin(c[0]), jnp.cos(c[1])), None), start, None, length=2)[0]


def product_of_equals(p, own):
    a, b = through_a_loop(p, own)
    return lax.psum(a @ a.T, "x"), lax.psum(jnp.sum(b), "x")


def scattered_equals(p, own):
    a, b = through_a_loop(p, own)
    return lax.psum(jnp.zeros((WORDS, 8)).at[jnp.argsort(a[:, 0])].add(a), "x"), lax.psum(b, "x")


def convolved_equals(p, own):
    a, b = through_a_loop(p, own)
    x = a.reshape(4, 2, -1)
    return lax.psum(lax.conv(x, x[:, :, :3], (1,), "SAME"), "x"), lax.psum(b, "x")


def beside_a_barrier(p, own):
    a, b = lax.optimization_barrier((lax.pcast(p, "x", to="varying"), own))
    return (
        lax.psum(a @ a.T, "x"),
        lax.psum(jnp.zeros((WORDS, 8)).at[::-1].add(a), "x"),
        lax.psum(b, "x"),
    )


def a_number(_, own):
    return lax.psum(jnp.zeros(()).at[()].add(own[0, 0]), "x")


def beyond_all_numbers(_, own):
    """Each difference is zero, each of the two sums infinite."""
    a = own * 0 + 1e19
    return lax.psum(a.T @ a - (a.T @ (a * 1.0)), "x"), lax.psum(
        jnp.full(4, 2e38).at[1:3].add(-2e38), "x"
    )


@pytest.mark.parametrize("at_once", [1, 3, 4, 8])
@pytest.mark.parametrize(
    "body",
    [product_of_equals, scattered_equals, convolved_equals, beside_a_barrier, a_number,
     beyond_all_numbers],
)  # fmt: skip
def test_what_looks_like_it_can_be_joined(body, at_once):
    f, args = over_devices(body, WEIGHTS, normal(16, 8))
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


def test_products_of_short_numbers_that_are_summed_as_long_ones():
    def body(_, x):
        return lax.psum((x.T @ (1.5 - x)).astype(jnp.float32), "x")

    x = jax.random.uniform(jax.random.key(0), (128, 24), minval=0.25, maxval=1.25)
    f, args = over_devices(body, WEIGHTS, x.astype(jnp.bfloat16))
    want = np.asarray(jax.jit(f)(*args))
    np.testing.assert_allclose(sw.simulate(f, at_once=8)(*args), want, rtol=1e-5)


@pytest.mark.parametrize("make", [gradient, gradient_by_hand])
def test_scattered_sums_of_short_numbers_are_no_less_exact(make):
    """As far from the exact sum as the devices are, or less: it is added up in float32."""
    table = WEIGHTS.astype(jnp.bfloat16).astype(jnp.float32)
    f, args = over_devices(make(halved), table, IDS)
    exact = jax.grad(tied)(*args)
    own, devices = (
        np.linalg.norm(result - exact)
        for result in (sw.simulate(f, at_once=4)(*args), jax.jit(f)(*args))
    )
    assert own <= 1.05 * devices


@pytest.mark.parametrize("name", ["embedded", "tied", "in layers", "counted", "by segment"])
def test_no_device_scatters_into_an_array_of_its_own(name):
    f, args = over_devices(*SCATTERED[name], IDS)
    text = jax.jit(sw.simulate(f, at_once=4)).lower(*args).as_text()
    assert "stablehlo.scatter" in text
    assert not re.search(rf"tensor<4x({WORDS}|{WORDS // 2})x", text)
    other, args = over_devices(*SCATTERED["apart from another"], IDS)
    text = jax.jit(sw.simulate(other, at_once=4)).lower(*args).as_text()
    assert f"tensor<4x{WORDS}x" in text  # the question can be answered with yes


# --- convolutions


IMAGES = normal(16, 9, 10, 4)


def convolved(w, x, *, strides=(1, 1), padding="SAME", order=("NHWC", "HWIO", "NHWC"), **options):
    out = lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=order, **options)
    return jnp.sum(jnp.sin(out.astype(jnp.float32)) ** 2)


def in_a_branch(w, x):
    return lax.cond(x[0, 0, 0, 0] > 0, convolved, lambda w, x: 2 * convolved(w, x), w, x)


def twice(ws, x):
    def layer(x, w):
        return lax.conv_general_dilated(
            jnp.tanh(x), w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ), None

    return jnp.sum(lax.scan(layer, x, ws)[0] ** 2)


def option(**options):
    return functools.partial(convolved, **options)


CONVOLVED = {
    "plain": (convolved, normal(3, 3, 4, 5), IMAGES),
    "strided": (option(strides=(2, 3), padding="VALID"), normal(3, 2, 4, 5), IMAGES),
    "dilated": (
        option(padding=((2, 1), (0, 3)), rhs_dilation=(2, 1), lhs_dilation=(1, 2)),
        normal(3, 3, 4, 5),
        IMAGES,
    ),
    "in groups": (option(feature_group_count=2), normal(3, 3, 2, 6), IMAGES),
    "each channel by itself": (option(feature_group_count=4), normal(3, 3, 1, 8), IMAGES),
    "groups of the batch": (
        option(batch_group_count=2),
        normal(3, 3, 4, 6),
        IMAGES,
    ),
    "channels first": (
        option(order=("NCHW", "OIHW", "NCHW")),
        normal(5, 9, 3, 3),
        IMAGES,
    ),
    "mixed orders": (
        option(order=("HNWC", "IWOH", "CWNH")),
        normal(4, 3, 5, 2),
        normal(16, 9, 6, 4),
    ),
    "one dimension": (
        option(strides=(2,), order=("NHC", "HIO", "NHC")),
        normal(3, 4, 5),
        normal(16, 9, 4),
    ),
    "three dimensions": (
        option(strides=(1, 2, 1), order=("NDHWC", "DHWIO", "NDHWC")),
        normal(2, 3, 2, 3, 4),
        normal(8, 4, 5, 4, 3),
    ),
    "three dimensions, each channel by itself": (
        option(strides=(1, 2, 1), order=("NCDHW", "OIDHW", "NCDHW"), feature_group_count=3),
        normal(3, 1, 2, 3, 2),
        normal(8, 3, 4, 5, 4),
    ),
    "many features": (convolved, normal(3, 3, 4, 5), normal(320, 3, 4, 4)),
    "in layers": (twice, normal(3, 3, 3, 4, 4), IMAGES),
}


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("name", CONVOLVED)
def test_gradients_of_convolutions_are_what_devices_compute(name, at_once):
    loss, w, x = CONVOLVED[name]
    f, args = over_devices(gradient(loss), w, x)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


def test_convolutions_in_branches_of_their_own_are_what_devices_compute():
    f, args = over_devices(gradient_by_hand(in_a_branch), normal(3, 3, 4, 5), IMAGES)
    assert_same(sw.simulate(f)(*args), jax.jit(f)(*args))


def layouts(name, at_once):
    """The orders of dimensions of all convolutions that are compiled, and their groups."""
    loss, w, x = CONVOLVED[name]
    f, args = over_devices(gradient(loss), w, x)
    text = jax.jit(sw.simulate(f, at_once=at_once)).lower(*args).as_text()
    groups = {int(found) for found in re.findall(r"feature_group_count = (\d+)", text)}
    return set(re.findall(r"dim_numbers = (.*?), window", text)), groups


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize(
    "name", ["plain", "strided", "channels first", "mixed orders", "in layers"]
)
def test_convolutions_in_loops_are_in_the_order_that_xla_is_fast_at(name, at_once):
    orders, _ = layouts(name, at_once)
    assert orders == {"[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"}


def test_the_weights_of_devices_are_no_groups_of_one_convolution():
    assert layouts("plain", 4)[1] == {1}
    assert 2 in layouts("in groups", 4)[1] | layouts("in groups", 1)[1]


@pytest.mark.parametrize(
    "name", ["each channel by itself", "three dimensions, each channel by itself"]
)
def test_what_xla_is_slow_at_in_that_order_is_in_another(name):
    """Each channel by itself, forwards and to the images: with the weights' inputs in front."""
    orders, groups = layouts(name, 1)
    assert max(groups) > 1
    assert any("x[i, 0, 1" in order for order in orders)


# --- rows that are long


LONG = normal(16, 3, 7000)


def products_of_parts(_, own):
    return lax.psum(own[0] * own[1], "x")


def passed_on_and_summed(_, own):
    """Nothing that a loop could add up: the devices have met before."""
    return lax.psum(lax.ppermute(own[0], "x", [(i, (i + 1) % 8) for i in range(8)]), "x")


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.bool_])
@pytest.mark.parametrize("body", [products_of_parts, passed_on_and_summed])
def test_sums_of_long_rows_are_what_devices_compute(body, dtype, at_once):
    f, args = over_devices(body, WEIGHTS, (10 * LONG).astype(dtype))
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 19, 24])
def test_every_row_is_added_once(rows, monkeypatch):
    monkeypatch.setattr(sums, "SLOW", True)
    x = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (rows, 2, 9000)))
    np.testing.assert_array_equal(sums.sum_stack(x), np.sum(x, axis=0))
    text = str(jax.make_jaxpr(sums.sum_stack)(x.astype(jnp.float32)))
    assert "reduce_sum" not in text


def with_a_constant(_, own):
    """XLA sums the rows of such a product wrongly, if it is left to do so."""
    return lax.psum(own[0, 0, :4] @ jnp.ones((4, 1000)), "x")


def with_a_constant_and_summed(_, own):
    return lax.psum((own[0, :, :4] @ jnp.ones((4, 1000))).sum(0), "x")


def with_equal_columns(_, own):
    columns = jnp.broadcast_to(own[0, 0, :4, None], (4, 1000))
    return lax.psum((own[0, :, :4] @ (2 * columns)).sum(0), "x")


def below_zero(_, own):
    return 1 / lax.psum(lax.neg(jnp.sort(jnp.abs(own[0] * 0), axis=1)), "x")


@pytest.mark.parametrize("at_once", [1, 3, 4, 8])
@pytest.mark.parametrize(
    "body", [with_a_constant, with_a_constant_and_summed, with_equal_columns, below_zero]
)
def test_sums_that_xla_gets_wrong_by_itself(body, at_once):
    f, args = over_devices(body, WEIGHTS, LONG)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_convolutions_of_no_features(at_once):
    def body(_, own):
        images, weights = (jnp.sin(jnp.zeros((n, 0, 5)) + own[0, 0, 0]) for n in (2, 4))
        return lax.psum(lax.conv(images, weights[..., :3], (1,), "SAME"), "x")

    f, args = over_devices(body, WEIGHTS, LONG)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))

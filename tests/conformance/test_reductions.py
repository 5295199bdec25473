"""Sums and extremes over devices, to the last bit: in which type and order XLA combines them."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import real_mesh

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu")
SIZES = {"x": 4, "y": 2}
GROUPS = [[3, 1], [0, 2]]
CRASHES = jax.__version_info__ == (0, 11, 2)
"""XLA's compiler, on CPUs, where it compiles the sum of a float16 constant."""
AT_ONCE = (1, 3, "auto")


def reductions(x, dtype):
    """Every reduction of a local array, of values that are rounded just before."""
    own = (jnp.sin(x) * 5).astype(dtype)
    value = jnp.asarray(1.1, dtype)
    same = value + 0 * own if CRASHES else own.at[...].set(value)
    return {
        "one axis": lax.psum(own, "x"),
        "two axes": lax.psum(own, ("y", "x")),
        "in groups": lax.psum(own, "x", axis_index_groups=GROUPS),
        "scattered": lax.psum_scatter(own, "x", tiled=True),
        "of one value": lax.psum(same, "x"),
        "largest": lax.pmax(own, ("x", "y")),
    }


def program(x, *, mesh, dtypes):
    def body(x):
        found = {dtype: reductions(x[0], dtype) for dtype in dtypes}
        return jax.tree.map(lambda out: out[None], found)

    specs = {"in_specs": P(("x", "y")), "out_specs": P(("x", "y"))}
    return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x)


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 64)).astype(np.float32) * 3


@lru_cache
def wanted(dtypes):
    run = jax.jit(partial(program, mesh=real_mesh(**SIZES), dtypes=dtypes))
    return jax.device_get(run(data()))


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_narrow_types_are_rounded_as_on_devices(at_once):
    run = sw.simulate(partial(program, dtypes=NARROW), mesh=sw.mesh(**SIZES), at_once=at_once)
    found = jax.device_get(run(data()))
    for dtype, reductions in wanted(NARROW).items():
        for name, real in reductions.items():
            got, want = (np.asarray(each, np.float32) for each in (found[dtype][name], real))
            np.testing.assert_array_equal(got, want, err_msg=f"{name} of {dtype}")


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_float16_overflows_and_loses_ones_on_the_way(at_once):
    columns = [[2048, 60000, 1], [1, 60000, 2], [1, -60000, 3], [1, -60000, 4]]
    x = jnp.asarray(columns, jnp.float16)
    total = sw.simulate(
        lambda x, mesh: jax.shard_map(
            lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()
        )(x),
        mesh=sw.mesh(x=4),
        at_once=at_once,
    )(x)
    np.testing.assert_array_equal(total, np.array([[2048, np.inf, 10]], np.float16))


ODD = {
    "a NaN first": [np.nan, 1.0, 2.0, 0.0],
    "a NaN last": [0.0, 1.0, 2.0, np.nan],
    "NaN alone": [np.nan] * 4,
    "zeros, the negative one first": [-0.0, 0.0, 0.0, -0.0],
    "zeros, the positive one first": [0.0, -0.0, -0.0, -0.0],
    "negative zeros": [-0.0] * 4,
    "infinities": [-np.inf, np.inf, 1.0, 2.0],
}
ODD_TYPES = ("float32", "float16", "float8_e4m3fn", "float8_e8m0fnu")


def odd_program(x, *, mesh):
    def body(x):
        found = {}
        for dtype in ODD_TYPES:
            own = x.astype(dtype)
            found[dtype] = {
                "pmax": lax.pmax(own, "x"),
                "pmin": lax.pmin(own, "x"),
                "psum": lax.psum(own, "x"),
                "psum_scatter": lax.psum_scatter(own[0], "x", tiled=True)[None],
                "pmax in groups": lax.pmax(own, "x", axis_index_groups=GROUPS),
            }
        return found

    specs = {"in_specs": P("x"), "out_specs": P("x")}
    return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x)


@lru_cache
def odd_wanted():
    return jax.device_get(jax.jit(partial(odd_program, mesh=real_mesh(x=4)))(odd_data()))


def odd_data():
    columns = np.array(list(ODD.values()), np.float32).T
    return np.concatenate([columns, columns[:, :1]], axis=1)


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_nan_and_signed_zeros(at_once):
    run = sw.simulate(odd_program, mesh=sw.mesh(x=4), at_once=at_once)
    found = jax.device_get(run(odd_data()))
    for dtype, reductions in odd_wanted().items():
        for name, want in reductions.items():
            assert _bits(found[dtype][name]) == _bits(want), f"{name} of {dtype}"


@pytest.mark.parametrize("n", [1, 3])
def test_a_sum_of_negative_zeros_that_are_the_same_everywhere(n):
    """By itself XLA makes a product of it, which stays negative."""

    def program(x, *, mesh):
        def body(x):
            own = [x.astype(dtype) for dtype in (*ODD_TYPES[:3], "bfloat16")]
            return [(lax.psum(x, "x"), lax.psum_scatter(x, "x", tiled=True)) for x in own]

        specs = {"in_specs": P(), "out_specs": [(P(), P("x"))] * 4}
        return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x)

    x = np.array([-0.0, 0.0, 1.0], np.float32)
    want = jax.jit(partial(program, mesh=real_mesh(x=n)))(x)
    got = sw.simulate(program, mesh=sw.mesh(x=n))(x)
    assert jax.tree.map(_bits, got) == jax.tree.map(_bits, want)


@pytest.mark.parametrize("sizes", [{"x": 1}, {"x": 1, "y": 2}, {"x": 2}], ids=str)
def test_a_sum_of_negative_zeros_that_are_made_where_it_is_taken(sizes):
    """Over one device XLA leaves a `psum` out, and no `psum_scatter`."""

    def program(x, *, mesh):
        def body(x):
            made = x[::-1]
            return lax.psum(made, "x"), lax.psum_scatter(made, "x", tiled=True)

        specs = {"in_specs": P("x"), "out_specs": P("x")}
        return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(x)

    x = np.array([-0.0, 0.0, -0.0, 1.0], np.float32)
    want = jax.jit(partial(program, mesh=real_mesh(**sizes)))(x)
    got = sw.simulate(program, mesh=sw.mesh(**sizes))(x)
    assert jax.tree.map(_bits, got) == jax.tree.map(_bits, want)


def _bits(x):
    """Every element with the sign of a zero; one NaN is like another."""
    return [
        "nan" if np.isnan(v) else repr(v) for v in np.asarray(x, np.float32).reshape(-1).tolist()
    ]


def test_these_tests_see_the_order():
    x = data().astype(np.float16)
    forward, backward = (_one_by_one(rows) for rows in (x, x[::-1]))
    assert (forward != backward).any()


def _one_by_one(rows):
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


@pytest.mark.parametrize("at_once", [1, "auto"])
@pytest.mark.parametrize("sizes", [{"x": 1}, {"x": 1, "y": 2}, {"y": 2, "x": 1}], ids=str)
def test_over_an_axis_of_one_device(sizes, at_once):
    """With other devices on the mesh XLA reduces all the same: a NaN is passed over."""

    def program(whole, cut, *, mesh):
        def body(whole, cut):
            same = [lax.pcast(whole, "x", to="varying").astype(dtype) for dtype in ODD_TYPES[:3]]
            own = [*same, *(cut.astype(dtype) for dtype in ODD_TYPES[:3])]
            return [(lax.pmax(x, "x"), lax.pmin(x, "x"), lax.psum(x, "x")) for x in own]

        specs = {"in_specs": (P(), P("x")), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, **specs)(whole, cut)

    x = np.array([np.nan, np.inf, -0.0, 0.0, 1.0], np.float32)
    want = jax.device_get(jax.jit(partial(program, mesh=real_mesh(**sizes)))(x, x))
    found = jax.device_get(sw.simulate(program, mesh=sw.mesh(**sizes), at_once=at_once)(x, x))
    for k, (got, real) in enumerate(zip(found, want, strict=True)):
        for name, one, other in zip(("pmax", "pmin", "psum"), got, real, strict=True):
            assert _bits(one) == _bits(other), f"{name} of operand {k}"

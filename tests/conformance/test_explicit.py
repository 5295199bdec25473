"""Meshes with Explicit axes: how arguments lie, types in derivatives, sums still owed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal

SIZES = {"x": 4, "y": 2}
X, W = normal(8, 8), normal(8, 4)


def explicit(**sizes: int) -> AbstractMesh:
    kinds = (AxisType.Explicit,) * len(sizes)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def on_devices(**sizes: int) -> Mesh:
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Explicit,) * len(sizes)
    )


class Program(NamedTuple):
    """A function of `x` and `w`, and how the two lie."""

    f: object
    x: P
    w: P


PROGRAMS: dict[str, Program] = {}


WHOLE = P()


def program(x: P, w: P = WHOLE):
    def enter(f):
        PROGRAMS[f.__name__] = Program(f, x, w)
        return f

    return enter


def smap(body, **options):
    return jax.shard_map(body, **options)


@program(P("x"))
def specs_from_the_types(x, w):
    return smap(lambda x, w: lax.psum(jnp.tanh(x @ w), "x"), out_specs=P())(x, w)


@program(P(("x", "y")))
def specs_over_two_axes(x, w):
    return smap(lambda x, w: lax.psum(jnp.tanh(x @ w), ("x", "y")), out_specs=P())(x, w)


@program(P("x", "y"), P("y"))
def both_split(x, w):
    body = smap(lambda x, w: jnp.tanh(lax.psum(x @ w, "y")), out_specs=P("x"))
    return body(x, w)


@program(P("x"))
def specs_as_they_lie(x, w):
    f = smap(lambda x, w: x @ w, in_specs=(P("x"), P()), out_specs=P("x"))
    return f(jnp.sin(x), w)


@program(P("x"))
def resharded_first(x, w):
    x = jax.sharding.reshard(x, P("y"))
    return smap(lambda x, w: lax.psum(x @ w, "y"), out_specs=P())(x, w)


@program(P("x"))
def partly_manual(x, w):
    f = smap(lambda x, w: lax.psum(x @ w, "x"), out_specs=P(), axis_names={"x"})
    return jnp.tanh(f(x, w))


@program(P("x"))
def plain_operations(x, w):
    return jnp.sum(jnp.tanh(x @ w), axis=0)


@program(P("x"))
def automatic_inside(x, w):
    double = jax.sharding.auto_axes(lambda x: x * 2 + x[::-1])
    return smap(lambda x: lax.psum(x, "x"), out_specs=P())(double(x, out_sharding=P("x")) @ w)


@program(P("x"))
def a_sum_still_owed(x, w):
    z = jnp.einsum("ba,bc->ac", x, jnp.tanh(x @ w), out_sharding=P(unreduced={"x"}))
    paid = smap(lambda z: lax.psum(z, "x"), in_specs=P(unreduced={"x"}), out_specs=P())
    return paid(z) ** 3


@program(P("x"))
def a_sum_still_owed_is_scattered(x, w):
    z = jnp.einsum("ba,bc->ac", x, jnp.tanh(x @ w), out_sharding=P(unreduced={"x"}))
    paid = smap(
        lambda z: lax.psum_scatter(z, "x", scatter_dimension=1, tiled=True),
        in_specs=P(unreduced={"x"}),
        out_specs=P(None, "x"),
    )
    return paid(z) ** 3


@program(P("x"))
def owed_by_a_body_and_paid_outside(x, w):
    def body(x, w):
        return lax.pcast(x.T @ jnp.tanh(x @ w), "x", to="unreduced")

    z = smap(body, in_specs=(P("x"), P()), out_specs=P(unreduced={"x"}))(x, w)
    z = z + z  # a share of each device's, twice
    return jax.sharding.reshard(z, P()) ** 3


@program(P("x"))
def owed_over_two_axes(x, w):
    def body(x, w):
        return lax.pcast(x.T @ jnp.tanh(x @ w), ("x", "y"), to="unreduced")

    specs = (P(("x", "y")), P())
    x = jax.sharding.reshard(x, P(("x", "y")))
    z = smap(body, in_specs=specs, out_specs=P(unreduced={"x", "y"}))(x, w)
    return jax.sharding.reshard(z, P("x", "y")) ** 3


@program(P("x"), P("x"))
def gathered_as_reduced(x, w):
    gathered = P(None, None, reduced={"x"})
    whole = smap(
        lambda w: lax.all_gather(w, "x", tiled=True, to="reduced"),
        in_specs=P("x"),
        out_specs=gathered,
    )(w)
    return smap(lambda x, w: jnp.tanh(x @ w), in_specs=(P("x"), gathered), out_specs=P("x"))(
        x, whole
    )


@program(P("x"))
def unchecked_shares(x, w):
    owed = P(unreduced={"x"})
    z = smap(
        lambda x, w: x.T @ jnp.tanh(x @ w),
        in_specs=(P("x"), P()),
        out_specs=owed,
        check_vma=False,
    )(x, w)
    # Each device's own share, as it is.
    shares = smap(lambda z: z, in_specs=owed, out_specs=P("x"), check_vma=False)(z)
    return shares**3, jax.sharding.reshard(z, P()) ** 2


@program(P("x"))
def unchecked_same_share_everywhere(x, w):
    owed = P(unreduced={"x"})
    z = smap(lambda w: jnp.sin(w), in_specs=P(), out_specs=owed, check_vma=False)(w)
    return x @ jax.sharding.reshard(z, P())  # four times sin(w)


def total(f):
    def loss(x, w):
        outs = jax.tree.leaves(f(x, w))
        return sum(jnp.sum(out * jnp.cos(jnp.arange(out.shape[-1]))) for out in outs)

    return loss


def real(each: Program, around):
    mesh = on_devices(**SIZES)
    with jax.set_mesh(mesh):
        args = jax.device_put(X, each.x), jax.device_put(W, each.w)
        return jax.device_get(jax.jit(around(each.f))(*args))


def value(f):
    return f


def slope(f):
    return jax.grad(total(f), (0, 1))


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_value(name, at_once):
    each = PROGRAMS[name]
    call = sw.simulate(each.f, mesh=explicit(**SIZES), in_specs=(each.x, each.w), at_once=at_once)
    assert_same(call(X, W), real(each, value))


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivative(name):
    """Of the program simulated, and of the simulated program: the derivative on devices."""
    each = PROGRAMS[name]
    options = {"mesh": explicit(**SIZES), "in_specs": (each.x, each.w)}
    want = real(each, slope)
    assert_same(sw.simulate(slope(each.f), **options)(X, W), want)
    assert_same(slope(sw.simulate(each.f, **options))(X, W), want)
    assert_same(jax.jit(slope(sw.simulate(each.f, **options)))(X, W), want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_keep_the_sharding_they_have(name):
    each = PROGRAMS[name]
    want = real(each, value), real(each, slope)
    with jax.set_mesh(on_devices(**SIZES)):
        args = jax.device_put(X, each.x), jax.device_put(W, each.w)
        call = sw.simulate(each.f)
        assert_same(jax.device_get(call(*args)), want[0])
        assert_same(jax.device_get(jax.jit(call)(*args)), want[0])
        assert_same(jax.device_get(slope(call)(*args)), want[1])


@pytest.mark.parametrize("name", ["specs_from_the_types", "a_sum_still_owed"])
def test_pushed_forward(name):
    each = PROGRAMS[name]
    call = sw.simulate(each.f, mesh=explicit(**SIZES), in_specs=(each.x, each.w))
    got = jax.jvp(call, (X, W), (X, W))
    with jax.set_mesh(on_devices(**SIZES)):
        args = jax.device_put(X, each.x), jax.device_put(W, each.w)
        want = jax.jit(lambda *args: jax.jvp(each.f, args, args))(*args)
        assert_same(got, jax.device_get(want))


def test_an_unreduced_array_as_an_argument():
    mesh = on_devices(**SIZES)

    def f(z):
        paid = smap(lambda z: lax.psum(z, "x"), in_specs=P(unreduced={"x"}), out_specs=P())
        return paid(z)

    with jax.set_mesh(mesh):
        z = jax.jit(
            lambda x, w: jnp.einsum("ba,bc->ac", x, x @ w, out_sharding=P(unreduced={"x"}))
        )(jax.device_put(X, P("x")), jax.device_put(W, P()))
        assert_same(jax.device_get(sw.simulate(f)(z)), jax.device_get(jax.jit(f)(z)))


def test_a_result_that_is_owed_comes_as_the_sum():
    def f(x):
        return jnp.einsum("ba,bc->ac", x, x, out_sharding=P(unreduced={"x"}))

    got = sw.simulate(f, mesh=explicit(x=4), in_specs=P("x"))(X)
    np.testing.assert_allclose(got, X.T @ X, rtol=1e-5)


# --- how arguments lie


def shares(x):
    return smap(lambda part: part[:1], out_specs=P("x"))(x)


def test_a_layout_that_matters_is_asked_for():
    with pytest.raises(sw.ShardingError, match="how x is sharded over the mesh is unknown"):
        sw.simulate(shares, mesh=explicit(x=4))(X)
    with pytest.raises(sw.ShardingError, match="in_specs="):
        sw.check(shares, X, mesh=explicit(x=4))
    with pytest.raises(sw.ShardingError, match="in_specs="):
        sw.explain(shares, X, mesh=explicit(x=4))


def test_a_mesh_of_the_programs_own():
    own = jax.shard_map(lambda part: part[:1], mesh=explicit(x=4), out_specs=P("x"))
    with pytest.raises(sw.ShardingError, match="is unknown"):
        sw.simulate(own)(X)
    got = sw.simulate(own, in_specs=NamedSharding(explicit(x=4), P("x")))(X)
    assert_same(got, X[::2])


def test_a_layout_that_does_not_matter_is_not():
    def f(x):
        return shares(jax.sharding.reshard(x, P("x")))

    assert_same(sw.simulate(f, mesh=explicit(x=4))(X), X[::2])


@pytest.mark.parametrize("around", [lambda f: f, lambda f: jax.grad(lambda x: f(x).sum())])
def test_the_programs_own_specs_say_it(around):
    def f(x):
        body = smap(lambda x: lax.psum(x, "x"), in_specs=P("x"), out_specs=P())
        return body(jnp.sin(x))

    got = sw.simulate(around(f), mesh=explicit(x=4))(X)
    with jax.set_mesh(on_devices(x=4)):
        assert_same(got, jax.device_get(jax.jit(around(f))(jax.device_put(X, P("x")))))


def test_specs_that_differ_are_refused_as_on_devices():
    def f(x):
        return smap(lambda x: lax.psum(x, "x"), in_specs=P("x"), out_specs=P())(x)

    with pytest.raises(sw.ShardingError, match="the argument is sharded as P\\(None, None\\)"):
        sw.simulate(f, mesh=explicit(x=4), in_specs=P())(X)


WRONG = {
    "names axis 'z'": P("z"),
    "has 3 entries, and the array 2 dimensions": P(None, None, "x"),
    "dimension 0 of size 8 is split 3 ways": P("t"),
    "is a str": "x",
    "there is 1 argument": (P("x"), P("x")),
}


@pytest.mark.parametrize("words", WRONG)
def test_specs_that_make_no_sense(words):
    mesh = explicit(x=4, t=3)
    with pytest.raises(sw.ShardingError, match=words):
        sw.simulate(lambda x: x, mesh=mesh, in_specs=WRONG[words])(X)


def test_specs_without_a_mesh():
    with pytest.raises(sw.ShardingError, match="no mesh that they refer to"):
        sw.simulate(lambda x: x, in_specs=P("x"))(X)


def test_an_array_that_lies_otherwise_than_said():
    mesh = on_devices(x=4)
    x = jax.device_put(X, NamedSharding(mesh, P("x")))
    with pytest.raises(sw.ShardingError, match="An array that has a sharding keeps it"):
        sw.simulate(lambda x: x, mesh=mesh, in_specs=P(None, "x"))(x)


def test_trees_of_specs():
    def f(params, x):
        body = smap(lambda p, x: lax.psum(x @ p["w"], "x") + p["b"], out_specs=P())
        return body(params, x)

    params = {"w": W, "b": W[0]}
    want = np.stack(np.split(X, 4)).sum(0) @ W + W[0]
    for specs in [({"w": P(), "b": P()}, P("x")), (P(), P("x"))]:
        assert_same(sw.simulate(f, mesh=explicit(x=4), in_specs=specs)(params, X), want)


def test_check_on_explicit_meshes():
    meshes = [explicit(x=n) for n in (1, 2, 4)]

    def right(x):
        return smap(lambda x: lax.psum(x.sum(), "x"), out_specs=P())(x)

    def wrong(x):
        return smap(lambda x: lax.pmean(x.sum(), "x"), out_specs=P())(x)

    assert sw.check(right, X, mesh=meshes, in_specs=P("x"))
    assert not sw.check(wrong, X, mesh=meshes, in_specs=P("x"), fix=False)


def test_explain_takes_specs():
    mesh = sw.mesh(x=4)  # Auto axes: only what one device holds depends on them
    report = sw.explain(lambda x, w: x @ w, X, W, mesh=mesh, in_specs=(P("x"), P()))
    assert [one.local_shape for one in report.arguments] == [(2, 8), (8, 4)]

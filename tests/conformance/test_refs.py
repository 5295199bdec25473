"""Mutable refs and the types of the caller; derivative rules of the user around refs."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh

X4 = {"x": 4}


def body(w, x):
    return lax.pmean(jnp.sum(jnp.tanh(x * w)), "x")


def loss(w, x, *, mesh):
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())(w, x)


@pytest.fixture
def data():
    return normal(3), normal(8, 3)


@pytest.fixture
def want(data):
    return jax.device_get(jax.jit(partial(loss, mesh=real_mesh(**X4)))(*data))


# --- types and refs of the caller


def test_results_keep_their_weak_types():
    def program(s, x, *, mesh):
        def body(s, x):
            looped, _ = lax.scan(lambda c, _: (c * 2, None), s, None, length=2)
            return s * 2, lax.psum(s, "x"), looped, jnp.where(s > 1, s, 0.0), x * s

        specs = {"in_specs": (P(), P("x")), "out_specs": (P(), P(), P(), P(), P("x"))}
        return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(s, x), s + 1

    x = jnp.ones(4, jnp.bfloat16)
    for s in (2.5, 3):
        want = jax.jit(partial(program, mesh=real_mesh(**X4)))(s, x)
        for at_once in (1, "auto"):
            call = sw.simulate(program, mesh=sw.mesh(**X4), at_once=at_once)
            for got in (call(s, x), jax.jit(call)(s, x)):
                types = [(a.dtype, a.weak_type) for a in jax.tree.leaves(got)]
                assert types == [(a.dtype, a.weak_type) for a in jax.tree.leaves(want)]


def test_weak_types_in_a_named_batch_are_those_of_a_function_traced_before():
    """`vmap` of the function itself has other ones: its sums see Python's numbers."""

    def program(s, x, *, mesh):
        def own(s, x):
            return s * 2.0, x

        specs = {"in_specs": (P(), P("x")), "out_specs": (P(), P("x"))}
        scalar, x = jax.shard_map(own, mesh=mesh, check_vma=False, **specs)(s, x)
        return scalar, scalar - lax.pmean(scalar, "batch"), lax.pmax(scalar, "batch"), x

    def batch(call):
        mapped = jax.vmap(call, in_axes=(None, 0), axis_name="batch")
        return jax.tree.map(jax.typeof, jax.jit(mapped)(2.5, jnp.ones((3, 4), jnp.bfloat16)))

    want = batch(jax.jit(partial(program, mesh=real_mesh(**X4))))
    got = batch(sw.simulate(program, mesh=sw.mesh(**X4)))
    kinds = [(t.dtype, t.shape, t.weak_type) for t in got]
    assert kinds == [(t.dtype, t.shape, t.weak_type) for t in want]
    assert kinds[0][2]


def counted(ref, w, x, *, mesh):
    ref[...] += loss(w, x, mesh=mesh)
    ref[...] *= 2
    return ref[...] + 1


@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_a_ref_among_the_arguments_is_updated(data, want, jit):
    call = sw.simulate(counted, mesh=sw.mesh(**X4))
    ref = jax.new_ref(jnp.float32(1))
    first = (jax.jit(call) if jit else call)(ref, *data)
    assert_same(first, np.float32(2 * (1 + want) + 1))
    second = call(ref, *data)
    assert_same(second, np.float32(2 * (2 * (1 + want) + want) + 1))
    assert_same(ref[...], np.float32(second - 1))


def test_a_ref_that_is_closed_over_is_updated(data, want):
    ref = jax.new_ref(jnp.float32(1))
    call = sw.simulate(lambda w, x, mesh: counted(ref, w, x, mesh=mesh), mesh=sw.mesh(**X4))
    assert_same(call(*data), np.float32(2 * (1 + want) + 1))
    assert_same(ref[...], np.float32(2 * (1 + want)))


def test_a_ref_among_the_arguments_is_refused_where_meshes_are_compared(data):
    ref = jax.new_ref(jnp.float32(1))
    for run in (partial(sw.check, mesh={"x": [1, 4]}), partial(sw.explain, mesh=sw.mesh(**X4))):
        with pytest.raises(sw.UnsupportedError, match="mutable ref"):
            run(counted, ref, *data)


def test_a_ref_that_a_body_closes_over_is_refused(data):
    def program(x, *, mesh):
        ref = jax.new_ref(jnp.zeros(()))

        def body(x):
            ref[...] = lax.psum(x.sum(), "x")
            return x

        jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)
        return ref[...]

    with pytest.raises(sw.UnsupportedError, match="closes over a mutable ref"):
        sw.simulate(program, mesh=sw.mesh(**X4))(data[1])


# --- refs and derivatives of the user's own


def _doubled(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2.0
    return ref[...] ** 2


@jax.custom_vjp
def halved(x):
    return _doubled(x)


halved.defvjp(lambda x: (_doubled(x), x), lambda x, ct: (0.5 * ct + x,))


@jax.custom_jvp
def leant(x):
    return _doubled(x)


leant.defjvp(lambda primals, tangents: (_doubled(primals[0]), 0.25 * tangents[0]))


@jax.custom_vjp
def scaled(x):
    return jnp.sin(x)


scaled.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (3.0 * ct * x,))

PLACES = {
    "straight": lambda f, x: f(x),
    "scan": lambda f, x: lax.scan(lambda c, row: (c, f(row)), 0.0, x)[1],
    "cond": lambda f, x: lax.cond(lax.axis_index("x") > 1, f, jnp.cos, x),
    "jit": lambda f, x: jax.jit(f)(x),
    "remat": lambda f, x: jax.checkpoint(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(x),
}


@pytest.mark.parametrize("own", [halved, leant, scaled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_rules_of_derivatives_survive_refs_around_and_inside_them(own, place):
    """JAX takes refs away when all is differentiated, and such rules with them."""

    def program(x, *, mesh):
        def body(x):
            ref = jax.new_ref(x)
            ref[...] = ref[...] + 1.0
            return PLACES[place](own, ref[...])

        options = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jnp.sum(jax.shard_map(body, mesh=mesh, **options)(x) * x)

    x = jnp.arange(1.0, 9.0) / 4
    want = jax.jit(jax.grad(partial(program, mesh=real_mesh(**X4))))(x)
    got = jax.grad(sw.simulate(program, mesh=sw.mesh(**X4)))(x)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_rule_that_takes_a_ref_is_refused_by_name():
    @jax.custom_vjp
    def times(x, ref):
        return x * ref[...]

    times.defvjp(lambda x, ref: (x * ref[...], ref[...]), lambda by, ct: (0.5 * ct * by, None))

    def program(x, *, mesh):
        def body(x):
            return times(x, jax.new_ref(2.0 * x))

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    x = jnp.arange(8.0)
    call = sw.simulate(program, mesh=sw.mesh(**X4))
    np.testing.assert_array_equal(call(x), 2 * x**2)
    with pytest.raises(sw.UnsupportedError, match="takes a ref and has a custom derivative rule"):
        jax.grad(lambda x: call(x).sum())(x)
    inside = sw.simulate(
        lambda x, *, mesh: jax.grad(lambda x: program(x, mesh=mesh).sum())(x), mesh=sw.mesh(**X4)
    )
    np.testing.assert_array_equal(inside(x), x)


def _closing_over(used):
    """A program with a rule that closes over a value of the body."""

    def program(x, k, *, mesh):
        def body(x, k):
            by = (k * 2).astype(x.dtype)

            @jax.custom_vjp
            def times(y):
                return y * by

            times.defvjp(lambda y: (y * by, by), lambda by, ct: (ct * by,))
            z = times(x)
            return lax.psum(jnp.sum(jnp.sin(x) + (z if used else 0.0)), "x")

        return jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P())(x, k)

    return program


@pytest.mark.parametrize("jit", [False, True])
def test_a_rule_that_closes_over_a_value_of_the_body_and_is_not_needed(jit):
    x, k = jnp.arange(8.0) / 8, jnp.arange(8)
    call = sw.simulate(_closing_over(False), mesh=sw.mesh(**X4))
    gradient = jax.grad(call)
    got = (jax.jit(gradient) if jit else gradient)(x, k)
    np.testing.assert_allclose(got, jnp.cos(x), rtol=1e-6)
    moved = jax.jvp(lambda x: call(x, k), (x,), (x,))[1]
    np.testing.assert_allclose(moved, jnp.sum(x * jnp.cos(x)), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_a_rule_that_closes_over_a_value_of_the_body_is_refused_by_name(jit):
    """As JAX refuses it under `jit`, which traces first as well; inside, it is differentiated."""
    x, k = jnp.arange(8.0) / 8, jnp.arange(8)
    program = _closing_over(True)
    gradient = jax.grad(sw.simulate(program, mesh=sw.mesh(**X4)))
    with pytest.raises(sw.UnsupportedError, match="closes over a value of the body"):
        (jax.jit(gradient) if jit else gradient)(x, k)
    inside = sw.simulate(
        lambda x, k, *, mesh: jax.grad(partial(program, mesh=mesh))(x, k), mesh=sw.mesh(**X4)
    )
    np.testing.assert_allclose(inside(x, k), jnp.cos(x) + 2.0 * np.arange(8.0), rtol=1e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_a_rule_that_closes_over_a_value_around_the_simulated_call(jit):
    def outer(x, by):
        @jax.custom_vjp
        def times(y):
            return y * by

        times.defvjp(lambda y: (y * by, by), lambda by, ct: (ct * by,))

        def program(x, *, mesh):
            body = lambda x: lax.psum(jnp.sum(times(x)), "x")  # noqa: E731
            return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

        return sw.simulate(program, mesh=sw.mesh(**X4))(x)

    x, by = jnp.arange(8.0), jnp.float32(3.0)
    gradient = jax.grad(outer)
    got = (jax.jit(gradient) if jit else gradient)(x, by)
    np.testing.assert_array_equal(got, jnp.full(8, 3.0))


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_left_as_it_was(collects):
    """It rests while a program is made."""

    def program(body):
        return lambda x, *, mesh: jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    (gc.enable if collects else gc.disable)()
    try:
        sw.simulate(program(lambda x: lax.psum(x, "x")), mesh={"x": 4})(jnp.arange(8.0))
        assert gc.isenabled() == collects
        with pytest.raises(sw.ShardingError):
            sw.simulate(program(lambda x: lax.psum(lax.ppermute(x, "x", [(0, 9)]), "x")), mesh=X4)(
                jnp.arange(8.0)
            )
        assert gc.isenabled() == collects
    finally:
        gc.enable()

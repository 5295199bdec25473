"""Ways to call: where the mesh comes from, what is closed over, what stands around the call."""

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


def ambient(w, x):
    return jax.shard_map(body, in_specs=(P(), P("x")), out_specs=P())(w, x)


@pytest.fixture
def data():
    return normal(3), normal(8, 3)


@pytest.fixture
def want(data):
    return jax.device_get(jax.jit(partial(loss, mesh=real_mesh(**X4)))(*data))


@pytest.fixture
def slope(data):
    return jax.device_get(jax.jit(jax.grad(partial(loss, mesh=real_mesh(**X4))))(*data))


# --- where the mesh comes from


def test_the_mesh_as_a_keyword(data, want):
    assert_same(sw.simulate(loss, mesh=sw.mesh(**X4))(*data), want)


def test_the_mesh_around(data, want):
    assert_same(sw.simulate(ambient, mesh=sw.mesh(**X4))(*data), want)


@pytest.mark.parametrize("make", [sw.mesh, real_mesh])
def test_a_mesh_of_the_programs_own(data, want, make):
    assert_same(sw.simulate(partial(loss, mesh=make(**X4)))(*data), want)


def test_a_real_mesh_is_simulated_all_the_same(data, want):
    got = sw.simulate(loss, mesh=real_mesh(**X4))(*data)
    assert_same(got, want)
    assert len(got.devices()) == 1


def test_no_more_devices_than_one_are_needed():
    x = normal(4096)
    got = sw.simulate(loss, mesh=sw.mesh(x=4096), at_once=64)(normal(), x)
    np.testing.assert_allclose(got, np.tanh(x * normal()).mean(), rtol=1e-4)


def test_arguments_that_live_on_many_devices(data, want):
    mesh = real_mesh(**X4)
    w = jax.device_put(data[0], jax.NamedSharding(mesh, P()))
    x = jax.device_put(data[1], jax.NamedSharding(mesh, P("x")))
    for call in (sw.simulate(loss, mesh=mesh), jax.jit(sw.simulate(loss, mesh=sw.mesh(**X4)))):
        assert_same(call(w, x), want)


def test_arguments_by_keyword(data, want):
    w, x = data
    assert_same(sw.simulate(loss, mesh=sw.mesh(**X4))(w, x=x), want)


def test_the_same_function_on_several_meshes(data):
    w, x = data
    for n in (1, 2, 4, 8):
        real = jax.jit(partial(loss, mesh=real_mesh(x=n)))
        assert_same(sw.simulate(loss, mesh=sw.mesh(x=n))(w, x), jax.device_get(real(w, x)))


# --- calling again


def test_other_shapes_and_dtypes_are_traced_anew():
    def total(x, *, mesh):
        specs = {"in_specs": P("x"), "out_specs": P()}
        return jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, **specs)(x)

    call = sw.simulate(total, mesh=sw.mesh(**X4))
    for x in (normal(8), normal(8, 2), np.arange(8), normal(8, dtype="complex64"), normal(4)):
        got = call(x)
        np.testing.assert_allclose(got, x.reshape(4, -1, *x.shape[1:]).sum(0), rtol=1e-5)
        assert got.dtype == jnp.asarray(x).dtype


def test_a_function_is_traced_once_for_each_type(data):
    traces = []

    def noted(w, x, *, mesh):
        traces.append(1)
        return loss(w, x, mesh=mesh)

    call = sw.simulate(noted, mesh=sw.mesh(**X4))
    w, x = data
    call(w, x)
    count = len(traces)
    call(w + 1, x * 2)
    assert len(traces) == count


def test_python_numbers_stay_weak():
    def scaled(s, x, *, mesh):
        specs = {"in_specs": (P(), P("x")), "out_specs": P("x")}
        return jax.shard_map(lambda s, x: s * x, mesh=mesh, **specs)(s, x)

    x = normal(8, dtype=jnp.bfloat16)
    assert sw.simulate(scaled, mesh=sw.mesh(**X4))(2.0, x).dtype == jnp.bfloat16


# --- what is closed over


def test_a_closure_over_an_array(data, want):
    w, x = data
    w = jnp.asarray(w)
    assert_same(sw.simulate(lambda x, mesh: loss(w, x, mesh=mesh), mesh=sw.mesh(**X4))(x), want)


def closing(x):
    """A function of `w` that simulates one of `x` with `w` closed over."""

    def outer(w):
        def inner(x, *, mesh):
            return loss(w, x, mesh=mesh)

        return sw.simulate(inner, mesh=sw.mesh(**X4))(x)

    return outer


def test_a_closure_over_a_tracer_of_jit(data, want):
    w, x = data
    assert_same(jax.jit(closing(x))(w), want)


def test_a_closure_over_a_tracer_of_grad(data, slope):
    w, x = data
    assert_same(jax.grad(closing(x))(w), slope)
    assert_same(jax.jit(jax.grad(closing(x)))(w), slope)


def test_a_closure_over_a_tracer_of_vmap(data):
    w, x = data
    ws = np.stack([w, 2 * w, -w])
    each = np.stack([closing(x)(w) for w in ws])
    assert_same(jax.vmap(closing(x))(ws), each)


def test_a_closure_over_a_tracer_inside_the_body(data, slope):
    w, x = data

    def outer(w):
        def program(x, *, mesh):
            inner = lambda x: body(w, x)  # noqa: E731
            return jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

        return sw.simulate(program, mesh=sw.mesh(**X4))(x)

    assert_same(jax.grad(outer)(w), slope)


# --- what stands around


def test_a_simulated_call_inside_a_scan(data):
    w, x = data

    def descend(call):
        def step(w, _):
            value, gradient = jax.value_and_grad(call)(w, x)
            return w - 0.1 * gradient, value

        return jax.jit(lambda w: lax.scan(step, w, None, length=3))(w)

    want = jax.device_get(descend(partial(loss, mesh=real_mesh(**X4))))
    assert_same(descend(sw.simulate(loss, mesh=sw.mesh(**X4))), want)


def test_a_simulated_call_inside_cond_and_while(data):
    w, x = data

    def program(call):
        def run(w):
            small = lax.while_loop(lambda w: call(w, x) > 0.1, lambda w: w * 0.5 - 0.1, w)
            return lax.cond(call(w, x) > 0, lambda: call(small, x), lambda: call(-small, x))

        return jax.jit(run)(w)

    want = jax.device_get(program(partial(loss, mesh=real_mesh(**X4))))
    assert_same(program(sw.simulate(loss, mesh=sw.mesh(**X4))), want)


def test_a_simulated_call_under_remat(data, slope):
    call = jax.checkpoint(sw.simulate(loss, mesh=sw.mesh(**X4)))
    assert_same(jax.grad(call)(*data), slope)


def test_a_simulated_call_inside_a_simulated_call(data, want):
    inner = sw.simulate(loss, mesh=sw.mesh(**X4))
    outer = sw.simulate(lambda w, x: inner(w, x), mesh=sw.mesh(y=2))
    assert_same(outer(*data), want)


def test_a_simulated_call_inside_a_body_of_a_real_program(data):
    w, x = data
    inner = sw.simulate(loss, mesh=sw.mesh(**X4))

    def outer(w, x):
        return lax.pmean(inner(w, x), "y")

    run = jax.shard_map(
        outer, mesh=real_mesh(y=2), in_specs=(P(), P("y")), out_specs=P(), check_vma=False
    )
    halves = [np.tanh(part * w).sum() / 4 for part in x.reshape(2, 4, 3)]
    np.testing.assert_allclose(jax.jit(run)(w, x), np.mean(halves), rtol=1e-5)


def test_compiled_ahead_of_time(data, want):
    call = jax.jit(sw.simulate(loss, mesh=sw.mesh(**X4)))
    assert_same(call.lower(*data).compile()(*data), want)


def test_shapes_without_running(data):
    call = sw.simulate(loss, mesh=sw.mesh(x=4))
    out = jax.eval_shape(call, *data)
    assert (out.shape, out.dtype) == ((), jnp.float32)


def test_double_precision():
    def program(w, x, i, *, mesh):
        def body(w, x, i):
            key = jax.random.fold_in(jax.random.key(0), lax.axis_index("x"))
            noise = jax.random.normal(key, x.shape)
            return (
                lax.pmean(jnp.tanh(x * w + noise), "x"),
                lax.psum(i, "x"),
                lax.axis_index("x")[None],
            )

        specs = {"in_specs": (P(), P("x"), P("x")), "out_specs": (P(), P(), P("x"))}
        return jax.shard_map(body, mesh=mesh, **specs)(w, x, i)

    with jax.enable_x64(True):
        args = normal(3, dtype="float64"), normal(8, 3, dtype="float64"), np.arange(8) << 40
        want = jax.device_get(jax.jit(partial(program, mesh=real_mesh(**X4)))(*args))
        for at_once in (1, 3):
            got = jax.device_get(sw.simulate(program, mesh=sw.mesh(**X4), at_once=at_once)(*args))
            assert_same(got, want)
            assert got[0].dtype == np.float64
            assert got[1].dtype == np.int64


def test_without_jit(data, want):
    with jax.disable_jit():
        assert_same(sw.simulate(loss, mesh=sw.mesh(**X4))(*data), want)


def test_checking_without_jit(data):
    with jax.disable_jit():
        without = sw.check(loss, *data, mesh=X4)
    assert str(without) == str(sw.check(loss, *data, mesh=X4))


def test_checking_for_nan(data):
    with jax.debug_nans(True):
        call = sw.simulate(lambda w, x, mesh: loss(w, x, mesh=mesh) * jnp.nan, mesh=sw.mesh(**X4))
        with pytest.raises(FloatingPointError):
            call(*data)


def test_checking_for_leaks(data, want):
    with jax.checking_leaks():
        assert_same(sw.simulate(loss, mesh=sw.mesh(**X4))(*data), want)


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


# --- shard_maps inside partly manual ones


def nested(x, *, mesh):
    def inner(x):
        return lax.psum(jnp.sin(x) * lax.psum(x.sum(), "y"), "y")

    def outer(x):
        y = jax.shard_map(inner, in_specs=P("y"), out_specs=P(), axis_names={"y"})(x)
        return lax.psum(y * y.sum(), "x")

    return jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})(x)


@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_a_forward_derivative_of_nested_shard_maps(jit):
    x, sizes = normal(8), {"x": 2, "y": 2}

    def push(f):
        return lambda x: jax.jvp(f, (x,), (jnp.cos(x),))

    want = jax.device_get(jax.jit(push(partial(nested, mesh=real_mesh(**sizes))))(x))
    call = push(sw.simulate(nested, mesh=sw.mesh(**sizes)))
    assert_same((jax.jit(call) if jit else call)(x), want)


def test_a_backward_derivative_of_nested_shard_maps_is_refused_by_name():
    call = sw.simulate(nested, mesh=sw.mesh(x=2, y=2))
    with pytest.raises(sw.UnsupportedError, match=r"names mesh axis 'x'.*the outer one has taken"):
        jax.grad(lambda x: call(x).sum())(normal(8))


def test_a_backward_derivative_of_nested_shard_maps_over_one_device():
    """An axis of size 1 may be named again: there is nothing to split, and JAX runs it."""
    x, sizes = normal(4), {"x": 1, "y": 2}

    def stacked(x, *, mesh):
        def inner(x):
            return lax.scan(lambda c, _: (c, x), jnp.sum(x) * 0, jnp.arange(3))[1].mean(0)

        def outer(x):
            return jax.shard_map(inner, in_specs=P(), out_specs=P(), axis_names={"y"})(x)

        specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}}
        return jax.shard_map(outer, mesh=mesh, **specs)(x)

    def slope(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())

    want = jax.device_get(jax.jit(slope(jax.jit(partial(stacked, mesh=real_mesh(**sizes)))))(x))
    assert_same(slope(sw.simulate(stacked, mesh=sw.mesh(**sizes)))(x), want)


def test_a_derivative_of_nested_shard_maps_that_writes_what_nobody_needs():
    """JAX writes specs that it refuses, and drops them as dead before it looks at them."""

    def program(x, y, *, mesh):
        def inner(x, y):
            here = lax.axis_index(("y", "x")).astype(jnp.float32)
            return jnp.stack([jnp.mean(x * 0.5), jnp.mean(y), here])

        def outer(x, y):
            specs = {"in_specs": (P(), P(None, "y")), "out_specs": P("y")}
            return jax.shard_map(inner, axis_names={"y"}, **specs)(x, y)

        specs = {"in_specs": (P(), P(None, "x")), "out_specs": P("x")}
        call = jax.shard_map(outer, mesh=mesh, axis_names={"x"}, **specs)
        return jax.hessian(lambda x: jnp.sum(call(x, y)))(x)

    x, y = normal(3), normal(2, 8)
    sizes = {"x": 2, "y": 2}
    want = jax.jit(partial(program, mesh=real_mesh(**sizes)))(x, y)
    assert_same(sw.simulate(program, mesh=sw.mesh(**sizes))(x, y), want)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: lax.psum_scatter(x > 0, "d", tiled=True),
        lambda x: lax.ppermute(x, "d", [(0, 99)]),
        lambda x: lax.ppermute(x, "d", [(0, 1), (0, 2)]),
    ],
)
def test_what_jax_refuses_and_nothing_needs(refused):
    """Under `jit` JAX has dropped it before it would refuse it."""

    def program(needed, x, *, mesh):
        def body(x):
            found = refused(x)
            return lax.psum(x, "d"), found if needed else x

        return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=(P(), P("d")))(x)

    x = jnp.arange(64.0)
    native = jax.jit(partial(program, False, mesh=real_mesh(d=8)))(x)
    ours = sw.simulate(partial(program, False), mesh=sw.mesh(d=8))(x)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, native, ours))
    explained = sw.explain(partial(program, False), x, mesh=sw.mesh(d=8))
    assert [one.name for one in explained.collectives] == ["psum"]
    with pytest.raises(sw.ShardingError):
        sw.simulate(partial(program, True), mesh=sw.mesh(d=8))(x)


def test_a_batch_of_derivatives_without_what_nothing_comes_of():
    """JAX cannot batch an exchange in groups, and has dropped it as dead by then."""

    def program(x, *, mesh):
        def body(x):
            parts = jnp.stack([x, 2 * x])
            lax.all_to_all(parts, "x", 0, 0, axis_index_groups=[[0, 1], [2, 3]])
            return jnp.sin(x)

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    def gradients(f):
        return jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(f(x) ** 2))))

    xs = normal(3, 8)
    want = gradients(jax.jit(partial(program, mesh=real_mesh(x=4))))(xs)
    assert_same(gradients(sw.simulate(program, mesh=sw.mesh(x=4)))(xs), want)


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

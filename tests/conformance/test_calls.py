"""Ways to call: where the mesh comes from, what is closed over, what stands around the call."""

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

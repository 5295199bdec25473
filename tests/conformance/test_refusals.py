"""What the simulator refuses, by name and line; and callbacks, which it does not refuse."""

import inspect
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..optional import because
from ..support import assert_same, real_mesh, vary

HERE = Path(__file__).name
SIZES = [{"x": 4}, {"x": 2, "y": 3}]


def simulated(body, sizes, *, at_once=1, jit=False, check_vma=False):
    def program(x, *, mesh):
        specs = {"in_specs": P("x"), "out_specs": P("x")}
        return jax.shard_map(body, mesh=mesh, check_vma=check_vma, **specs)(x)

    call = sw.simulate(program, mesh=sw.mesh(**sizes), at_once=at_once)
    return jax.jit(call) if jit else call


def ordered_io_callback(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return io_callback(np.sin, like, x, ordered=True)  # refused: io_callback


def ordered_debug_callback(x):
    jax.debug.callback(print, x, ordered=True)  # refused: debug_callback
    return x


def ordered_print(x):
    jax.debug.print("{}", x, ordered=True)  # refused: debug
    return x


def inside_a_scan(x):
    def step(carry, _):
        return carry + ordered_io_callback(carry), None

    return lax.scan(step, x, None, length=2)[0]


def inside_a_branch_never_taken(x):
    return lax.cond(jnp.array(False), ordered_io_callback, jnp.sin, x)


def inside_jit_and_remat(x):
    return jax.jit(jax.checkpoint(ordered_io_callback))(x)


def refs_in_a_composite(x):
    """JAX cannot compile it either."""

    def doubled(x):
        cell = jax.new_ref(x)
        cell[...] = cell[...] + lax.psum(x, "x")
        return cell[...]

    return lax.composite(doubled, name="our.sum")(x)  # refused: our.sum


REFUSED = {
    refs_in_a_composite: refs_in_a_composite,
    ordered_io_callback: ordered_io_callback,
    ordered_debug_callback: ordered_debug_callback,
    ordered_print: ordered_print,
    inside_a_scan: ordered_io_callback,
    inside_a_branch_never_taken: ordered_io_callback,
    inside_jit_and_remat: ordered_io_callback,
}


@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
@pytest.mark.parametrize("body", REFUSED, ids=lambda b: b.__name__)
def test_refused_by_name_and_line(body, jit):
    lines, start = inspect.getsourcelines(REFUSED[body])
    (number,) = [k for k, line in enumerate(lines) if "# refused: " in line]
    name = lines[number].split("# refused: ")[1].strip()
    with pytest.raises(sw.UnsupportedError) as caught:
        simulated(body, {"x": 4}, jit=jit)(jnp.arange(16.0))
    assert name in str(caught.value)
    assert f"{HERE}:{start + number}" in str(caught.value)


def test_a_forward_derivative_without_a_rule():
    @jax.custom_vjp
    def halved(x):
        return x / 2

    halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))
    x = jnp.arange(4.0)
    for f in (simulated(halved, {"x": 4}), jax.jit(simulated(halved, {"x": 4}))):
        np.testing.assert_allclose(jax.vjp(f, x)[1](x)[0], x / 2)
        with pytest.raises((sw.UnsupportedError, TypeError), match="forward"):
            jax.jvp(f, (x,), (x,))
    inside = simulated(lambda x: jax.jvp(halved, (x,), (x,))[1], {"x": 4})
    with pytest.raises(sw.UnsupportedError, match=rf"{HERE}:\d+: a forward derivative.*custom_vjp"):
        inside(x)


def test_sending_and_receiving_are_refused():
    if "psend" not in dir(lax):
        pytest.skip(because("This JAX has no psend and precv", "use a JAX that has them"))

    def body(x):
        return lax.precv(lax.psend(x, "x", [(0, 1)]), x, "x", [(0, 1)])

    with pytest.raises(sw.UnsupportedError, match=r"psend|precv"):
        simulated(body, {"x": 4})(jnp.arange(16.0))


def test_an_unsupported_error_is_also_a_not_implemented_error():
    with pytest.raises(NotImplementedError):
        simulated(ordered_print, {"x": 4})(jnp.arange(16.0))


# --- callbacks: once for each virtual device


def heard(body, sizes, **options):
    """What the callbacks of a body say, and how often."""
    said = []
    call = simulated(body(said.append), sizes, **options)
    jax.block_until_ready(call(jnp.arange(24.0)))
    jax.effects_barrier()
    return Counter(said)


def really_heard(body, sizes, check_vma):
    said = []
    specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": check_vma}
    call = jax.jit(jax.shard_map(body(said.append), mesh=real_mesh(**sizes), **specs))
    jax.block_until_ready(call(jnp.arange(24.0)))
    jax.effects_barrier()
    return Counter(said)


def telling(say):
    return lambda value: say(float(value))


def of_what_differs(say):
    def body(x):
        jax.debug.callback(telling(say), x.sum())
        return x

    return body


def of_what_is_the_same(say):
    def body(x):
        jax.debug.callback(telling(say), lax.psum(x.sum(), "x"))
        return x

    return body


def of_nothing(say):
    def body(x):
        jax.debug.callback(lambda: say("here"))
        return x

    return body


def between_collectives_in_a_loop(say):
    def body(x):
        def step(carry, _):
            jax.debug.callback(telling(say), carry.sum())
            total = lax.pmean(carry, "x")
            jax.debug.callback(telling(say), total.sum())
            return carry + total, None

        return lax.scan(step, x, None, length=2)[0]

    return body


def in_a_branch_that_some_devices_take(say):
    def body(x):
        def tell(x):
            jax.debug.callback(telling(say), x.sum())
            return x * 2

        return lax.cond(lax.axis_index("x") == 1, tell, jnp.sin, x)

    return body


def in_a_loop_of_different_lengths(say):
    def body(x):
        def step(i, x):
            jax.debug.callback(telling(say), x.sum())
            return x + 1

        return lax.fori_loop(0, lax.axis_index("x"), step, x)

    return body


CALLBACKS = [
    of_what_differs,
    of_what_is_the_same,
    of_nothing,
    between_collectives_in_a_loop,
    in_a_branch_that_some_devices_take,
    in_a_loop_of_different_lengths,
]


# Three at once of four: what fills up the second turn must not speak.
@pytest.mark.parametrize(("at_once", "jit"), [(1, False), (2, True), (3, False), ("auto", False)])
@pytest.mark.parametrize("body", CALLBACKS, ids=lambda b: b.__name__)
def test_callbacks_run_once_per_device(body, at_once, jit):
    sizes = SIZES[jit]
    want = really_heard(body, sizes, check_vma=jit)
    assert heard(body, sizes, at_once=at_once, jit=jit, check_vma=jit) == want


def test_prints_run_once_per_device(capfd):
    def body(x):
        jax.debug.print("the sum is {}", lax.psum(x.sum(), "x"))
        jax.debug.print("at {i}", i=lax.axis_index("x"))
        return x

    for at_once in (1, 2, 3, "auto"):
        jax.block_until_ready(simulated(body, {"x": 4}, at_once=at_once)(jnp.arange(4.0)))
        jax.effects_barrier()
        lines = capfd.readouterr().out.splitlines()
        expected = ["the sum is 6.0"] * 4 + [f"at {i}" for i in range(4)]
        assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize(("at_once", "jit"), [(1, True), (3, False), ("auto", True)])
def test_callbacks_with_results(at_once, jit):
    def body(x):
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        pure = jax.pure_callback(lambda a: np.sin(a), like, x)
        impure = io_callback(lambda a: np.cos(a), like, x)
        shared = jax.pure_callback(lambda a: np.exp(a), like, lax.pmean(x, "x") * 0.1)
        return pure * impure + vary(shared, ["x"])

    x = jnp.arange(24.0)
    specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
    want = jax.jit(jax.shard_map(body, mesh=real_mesh(x=4), **specs))(x)
    assert_same(simulated(body, {"x": 4}, at_once=at_once, jit=jit)(x), jax.device_get(want))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("reduce", [lax.pmax, lax.pmin])
def test_the_derivative_of_a_simulated_maximum_names_its_line(reduce, jit):
    def f(x, *, mesh):
        body = lambda x: reduce(jnp.max(x * x), "x")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    gradient = jax.grad(sw.simulate(f, mesh=sw.mesh(x=4)))
    line = f.__code__.co_firstlineno + 1
    with pytest.raises(sw.UnsupportedError, match=rf":{line}: a {reduce.__name__}"):
        (jax.jit(gradient) if jit else gradient)(jnp.arange(8.0))


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("reduce", [lax.psum, lax.pmax, lax.pmin, lax.psum_scatter])
def test_a_reduction_of_keys_is_told(reduce, same):
    def f(x, *, mesh):
        def body(x):
            key = jax.random.key(0)
            key = key if same else jax.random.fold_in(key, lax.axis_index("x"))
            key = jax.random.split(key, 4) if reduce is lax.psum_scatter else key
            return jax.random.key_data(reduce(key, "x")).ravel()[None]

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)

    with pytest.raises(sw.ShardingError, match=rf"{reduce.__name__} of random keys"):
        sw.simulate(f, mesh=sw.mesh(x=4))(jnp.arange(8.0))


def test_groups_of_devices_where_jax_checks_are_told():
    def f(x, *, mesh):
        body = lambda x: lax.psum(x, "x", axis_index_groups=[[0, 1], [2, 3]])  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    with pytest.raises(sw.UnsupportedError, match=r"axis_index_groups(?s:.)*check_vma=False"):
        sw.simulate(f, mesh=sw.mesh(x=4))(jnp.arange(8.0))


@pytest.mark.parametrize("axes", [None, 0, ("x", None), 1.5], ids=str)
@pytest.mark.parametrize("reduce", [lax.psum, lax.pmean, lax.pmax, lax.all_gather])
def test_a_collective_over_what_is_no_name_is_told(reduce, axes):
    def f(x, *, mesh):
        body = lambda x: reduce(x, axes)  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    odd = axes[1] if isinstance(axes, tuple) else axes
    told = rf"{reduce.__name__} names {odd}, which is no axis of the mesh, which has 'x'"
    with pytest.raises(sw.ShardingError, match=told):
        sw.simulate(f, mesh=sw.mesh(x=4))(jnp.arange(8.0))


def test_dimensions_in_place_of_names_run_as_in_jax():
    """Without its check JAX sums over dimensions that are named by number."""

    def f(x, *, mesh):
        body = lambda x: lax.psum(x, ("x", 0))  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)(x)

    assert sw.simulate(f, mesh=sw.mesh(x=4))(jnp.arange(8.0)) == 28


WRONG_CALLS = {
    "an indivisible dimension": (
        lambda x: lax.psum_scatter(x, "x", tiled=True),
        r"psum_scatter: .*\n.*equal parts with tiled=True(?s:.)*Remedy: .*multiple of the number",
    ),
    "no such dimension": (
        lambda x: lax.psum_scatter(x, "x", scatter_dimension=5),
        r"psum_scatter: .*out of (bounds|range)",
    ),
    "parts that are not single": (
        lambda x: lax.all_to_all(x, "x", 0, 0),
        r"all_to_all: (?s:.)*Remedy: tiled=True",
    ),
    "a scalar in tiles": (
        lambda x: lax.all_gather(x.sum(), "x", tiled=True),
        r"all_gather: (?s:.)*leave tiled= out",
    ),
    "something that is no array": (
        lambda x: lax.psum("x", "x"),
        r"psum: .*str",
    ),
    "the axis of a vmap": (
        lambda x: jax.vmap(lambda row: lax.psum(row, "rows"), axis_name="rows")(x),
        r"axis 'rows' is that of a vmap(?s:.)*check_vma=False",
    ),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_collective_that_does_not_fit_its_array_is_told_at_its_line(name):
    body, told = WRONG_CALLS[name]

    def f(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    with pytest.raises(sw.ShardingError, match=rf"{HERE}:\d+: {told}"):
        sw.simulate(f, mesh=sw.mesh(x=4))(jnp.ones((20, 3)))


@pytest.mark.parametrize("given", [sw.mesh(x=2), "text", print, P("x"), {"a": {1}}], ids=str)
def test_a_shard_map_that_is_given_no_array_is_told(given):
    def f(x, *, mesh):
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(given)

    with pytest.raises(sw.ArgumentError, match=rf"{HERE}:\d+: this shard_map is given something"):
        sw.simulate(f, mesh=sw.mesh(x=2))(jnp.arange(4.0))

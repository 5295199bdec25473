"""Sums over devices that a loop only adds up are made once, after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh

STEPS, WIDTH = 5, 6
WEIGHTS = normal(WIDTH, WIDTH)
ROWS = normal(16, STEPS, WIDTH)


def over_devices(body, *args, mesh=None, check_vma=True):
    mesh = mesh or real_mesh(x=8)
    split = P(tuple(mesh.axis_names))
    specs = (P(), split)
    f = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
    return f, args


def recurrent(w, own):
    """Every step uses the same weights: autodiff sums over the devices in each of them."""

    def loss(w):
        step = lambda h, x: (jnp.tanh(x + h @ w), None)  # noqa: E731
        h, _ = lax.scan(step, 0 * own[:, 0], own.swapaxes(0, 1))
        return lax.psum(jnp.sum(h**2), "x")

    return jax.value_and_grad(loss)(w)


def recurrent_in_layers(w, own):
    def loss(w):
        def layer(x, scale):
            step = lambda h, x: (jnp.tanh(x + scale * h @ w), None)  # noqa: E731
            return x + lax.scan(step, 0 * x[:, 0], x.swapaxes(0, 1))[0][:, None], None

        x, _ = lax.scan(layer, own, jnp.arange(1.0, 4.0) / 9)
        return lax.psum(jnp.sum(x**2), "x")

    return jax.grad(loss)(w)


def accumulated(w, own):
    """Gradients of parts of what a device has, each summed over the devices."""

    def turn(total, x):
        return total + jax.grad(lambda w: lax.psum(jnp.sum(jnp.sin(x @ w)), "x"))(w), None

    return lax.scan(turn, jnp.zeros_like(w), own.swapaxes(0, 1))[0]


def looping(turn, start=None, reverse=False):
    """A loop over what a device has that carries a total."""

    def body(w, own):
        first = w if start is None else start
        xs = own.swapaxes(0, 1)
        return lax.scan(turn, first, xs, reverse=reverse, length=STEPS)

    return body


def outer(x):
    return x.T @ jnp.cos(x)


def summed(total, x):
    return total + lax.psum(outer(x), "x"), None


def from_the_left(total, x):
    return lax.psum(outer(x), "x").T + total, None


def counted(total, x):
    return total + lax.psum((outer(x) > 0).astype(jnp.int32), "x"), None


def in_short_numbers(total, x):
    return total + lax.psum(outer(x).astype(jnp.bfloat16), "x"), None


def read_besides(total, x):
    total = total + lax.psum(outer(x), "x")
    return total, jnp.sum(total)


def used_besides(total, x):
    return total + lax.psum(outer(x) * jnp.sum(total), "x"), None


def doubled(total, x):
    made = lax.psum(outer(x), "x")
    return total + made * 2, jnp.sum(made)


def two_totals(totals, x):
    a, b = totals
    made = outer(x)
    return (a + lax.psum(made, "x"), b + lax.psum(jnp.sum(made, 0), "x")), None


ZEROS = jnp.zeros((WIDTH, WIDTH))


def numbers(turn, start):
    """A loop over the numbers of a device, which are all the same."""
    return lambda _, own: lax.scan(turn, start, jnp.full(200, own[0, 0, 0]))[0]


def added(total, x):
    return total + lax.psum(x, "x"), None


def cancelling_on_devices(_, own):
    """Each device's own sum is infinite, that of all of them is zero in every turn."""
    sign = jnp.where(lax.axis_index("x") % 2 == 0, 2e38, -2e38) + 0 * own[0, 0, 0]
    return lax.scan(added, 0.0, jnp.full(4, sign))[0]


def cancelling_in_turns(_, own):
    """The sum over the devices is infinite in every turn, each device's own is zero."""
    return lax.scan(added, 0.0, 0 * own[0, 0, 0] + jnp.array([2e38, -2e38]))[0]


BODIES = {
    "recurrent": recurrent,
    "recurrent in layers": recurrent_in_layers,
    "accumulated": accumulated,
    "summed": looping(summed),
    "summed backwards": looping(summed, reverse=True),
    "from the left": looping(from_the_left),
    "counted": looping(counted, ZEROS.astype(jnp.int32)),
    "in short numbers": looping(in_short_numbers, ZEROS.astype(jnp.bfloat16)),
    "read besides": looping(read_besides),
    "used besides": looping(used_besides),
    "doubled": looping(doubled),
    "two totals": looping(two_totals, (ZEROS, ZEROS[0])),
    "from a large number on": lambda w, own: numbers(added, 2.0**24)(w, 0 * own + 0.125),
    "cancelling on devices": cancelling_on_devices,
    "cancelling in turns": cancelling_in_turns,
}


@pytest.mark.parametrize("at_once", [1, 3, 8])
@pytest.mark.parametrize("name", BODIES)
def test_they_are_what_devices_compute(name, at_once):
    f, args = over_devices(BODIES[name], WEIGHTS, ROWS)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("over", ["x", ("x", "y")])
def test_over_one_axis_and_over_two(over, at_once):
    def body(w, own):
        turn = lambda total, x: (total + lax.psum(outer(x), over), None)  # noqa: E731
        total, _ = lax.scan(turn, w, own.swapaxes(0, 1))
        return total if over == ("x", "y") else lax.pmean(total, "y")

    f, args = over_devices(body, WEIGHTS, ROWS, mesh=real_mesh(x=4, y=2), check_vma=False)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


@pytest.mark.parametrize("at_once", [1, 4])
def test_nothing_is_kept_for_every_turn(at_once):
    def keeps(body):
        f, args = over_devices(body, WEIGHTS, ROWS)
        text = jax.jit(sw.simulate(f, at_once=at_once)).lower(*args).as_text()
        return f"tensor<{STEPS}x{WIDTH}x{WIDTH}xf32>" in text

    assert not keeps(recurrent)
    assert not keeps(recurrent_in_layers)
    assert not keeps(accumulated)
    assert keeps(looping(read_besides))  # the question can be answered with yes


def test_a_recurrent_network_takes_what_a_loop_by_hand_takes():
    def by_hand(w, rows):
        def add(total, own):
            def loss(w):
                step = lambda h, x: (jnp.tanh(x + h @ w), None)  # noqa: E731
                return jnp.sum(lax.scan(step, 0 * own[:, 0], own.swapaxes(0, 1))[0] ** 2)

            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(w)), None

        parts = rows.reshape(8, -1, *rows.shape[1:])
        return lax.scan(add, (jnp.zeros(()), jnp.zeros_like(w)), parts)[0]

    w, rows = normal(64, 64), normal(32, 50, 64)
    compiled = jax.jit(by_hand).lower(w, rows).compile()
    f, args = over_devices(recurrent, w, rows)
    own = jax.jit(sw.simulate(f, at_once=1)).lower(*args).compile()
    taken = [each.memory_analysis().temp_size_in_bytes for each in (own, compiled)]
    assert taken[0] <= 1.1 * taken[1]
    for mine, other in zip(own(*args), compiled(w, rows), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def test_collectives_of_several_operands_that_a_loop_adds_up():
    """Each of two devices sends a row to each of them, in every turn: an `all_to_all`."""

    def ragged(total, x):
        place, one = jnp.arange(2), jnp.ones(2, jnp.int32)
        mine = lax.axis_index("x") * one
        return total + lax.ragged_all_to_all(x, 0 * x, place, one, mine, one, axis_name="x"), None

    def plain(total, x):
        return total + lax.all_to_all(x, "x", 0, 0, tiled=True), None

    def f(x, turn, *, mesh):
        body = lambda x: lax.scan(turn, 0 * x[0], x)[0]  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P(None, "x"), out_specs=P("x"))(x)

    x = normal(STEPS, 4, WIDTH)
    want = jax.jit(lambda x: f(x, plain, mesh=real_mesh(x=2)))(x)
    got = sw.simulate(lambda x, *, mesh: f(x, ragged, mesh=mesh), mesh=sw.mesh(x=2))(x)
    assert_same(got, want)

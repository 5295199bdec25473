"""What the lowered program consists of: no more than it needs, and no clock is looked at."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise import _jax
from shardwise._program import Leaf, Var

from ..support import assert_same, normal, real_mesh

RING = [(i, (i + 1) % 4) for i in range(4)]


def sharded(body):
    return jax.shard_map(body, mesh=real_mesh(x=4), in_specs=P("x"), out_specs=P("x"))


def chain(x):
    for k in range(6):
        x = x + lax.ppermute(x, "x", RING) * (1.0 / (k + 1))
    return x


def numbers_beside_numbers(x):
    """Numbers that differ beside such that do not, in operations that want one shape."""
    own, at = x[0, 0], lax.axis_index("x")
    chosen = lax.select(at > 1, own, jnp.float32(3.0))
    bounded = lax.clamp(jnp.float32(-1.0), chosen, lax.convert_element_type(at, jnp.float32))
    total = lax.psum(bounded, "x")
    return jnp.where(at % 2 == 0, x * total, lax.ppermute(x, "x", RING).T.reshape(x.shape) + own)


def reshaped_from_another_order(x):
    turned = lax.reshape(x, (4, 2), dimensions=(1, 0))
    return lax.ppermute(turned, "x", RING).T * 2.0


@pytest.mark.parametrize("body", [chain, numbers_beside_numbers, reshaped_from_another_order])
def test_a_stage_without_a_loop_is_what_devices_do(body):
    f, x = sharded(body), jnp.arange(32.0).reshape(8, 4) / 7
    np.testing.assert_allclose(sw.simulate(f)(x), jax.jit(f)(x), rtol=1e-6)


def test_what_is_done_element_by_element_needs_no_loop():
    lowered = jax.jit(sw.simulate(sharded(chain))).lower(jnp.ones((8, 4)))
    assert "stablehlo.while" not in lowered.as_text()
    assert lowered.compile().as_text().count(" gather(") <= 6


def test_what_would_take_memory_for_all_devices_is_looped_over():
    def body(x):
        wide = jnp.tanh(jnp.broadcast_to(x[:, None], (2, 4096, 256)))
        return lax.psum((wide * wide + jnp.exp(wide))[:, 0], "x") + x

    lowered = jax.jit(sw.simulate(sharded(body))).lower(jnp.ones((8, 256)))
    assert "stablehlo.while" in lowered.as_text()


# --- what only moves elements


def in_a_scan(w, x):
    """Layers in a loop: autodiff sums the gradient of each and hands it out transposed."""

    def loss(w):
        y, _ = lax.scan(lambda y, own: (jnp.tanh(y @ own), None), x, w)
        return lax.pmean(jnp.mean(y**2), "x")

    return jax.grad(loss)(w)


def one_after_another(w, x):
    def loss(w):
        y = x
        for k in range(3):
            y = jnp.tanh(y @ w[k])
        return lax.pmean(jnp.mean(y**2), "x")

    return jax.grad(loss)(w)


def turned(w, x):
    """Values that are read a second time, several moves, and every kind of reduction."""
    t = x.T
    lowest = lax.pmin(jnp.squeeze(x.T[None].reshape(1, 2, -1), 0), "x")
    return w * (lax.psum(x.T, "x").sum() + lax.pmax(t, "x").sum() + jnp.tanh(lax.psum(t, "x")).sum()
                + lax.psum(lowest.T, "x").sum())  # fmt: skip


def moves_in_loops(closed, loops=0):
    """The transposes inside loops of a program."""
    found = 0
    for eqn in closed.eqns:
        found += bool(loops) and eqn.primitive.name == "transpose"
        inside = loops + (eqn.primitive.name in ("scan", "while"))
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            found += moves_in_loops(inner, inside)
    return found


def of_weights(body):
    return jax.shard_map(body, mesh=real_mesh(x=4), in_specs=(P(), P("x")), out_specs=P())


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("body", [in_a_scan, one_after_another, turned])
def test_sums_before_moves_are_what_devices_compute(body, at_once):
    f, args = of_weights(body), (normal(3, 4, 4), normal(8, 4, seed=1))
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


@pytest.mark.parametrize("body", [in_a_scan, one_after_another])
def test_gradients_are_transposed_after_they_are_summed(body):
    args = (normal(3, 4, 4), normal(8, 4, seed=1))
    assert "transpose[" in str(jax.make_jaxpr(of_weights(body))(*args))
    simulated = jax.make_jaxpr(sw.simulate(of_weights(body), at_once=1))(*args)
    assert moves_in_loops(simulated.jaxpr) == 0


# --- what repeats


def written_out(count, kinds=(jnp.tanh,)):
    """Layers split over the devices, forward and backward, one after another."""

    def body(w, x):
        def loss(w):
            y = x
            for k in range(count):
                y = y + lax.psum(kinds[k % len(kinds)](y @ w[k]) @ w[k].T, "x")
            return jnp.mean(y**2)

        return jax.value_and_grad(loss)(w)

    mesh, split = real_mesh(x=4), P(None, "x")
    f = jax.shard_map(body, mesh=mesh, in_specs=(split, P()), out_specs=(P(), split))
    return f, ([normal(4, 8, seed=k) / 4 for k in range(count)], normal(3, 4))


@pytest.mark.parametrize("at_once", [1, 3])
def test_layers_that_are_written_out_are_lowered_once(at_once):
    def loops(count):
        f, args = written_out(count)
        return jax.jit(sw.simulate(f, at_once=at_once)).lower(*args).as_text().count("while")

    assert loops(4) == loops(8) > 0


@pytest.mark.parametrize("kinds", [(jnp.tanh,), (jnp.tanh, jnp.sin)])
@pytest.mark.parametrize("at_once", [1, 3])
def test_layers_that_are_written_out_are_what_devices_do(kinds, at_once):
    f, args = written_out(5, kinds)
    assert_same(sw.simulate(f, at_once=at_once)(*args), jax.jit(f)(*args))


def other_numbers(x):
    for k in range(4):
        x = jnp.cumsum(x) * (1.0 + k) + lax.psum(jnp.cumsum(x) ** 2 * 0.25, "x")
        x = lax.ppermute(x * (0.5 + k) + 0.25, "x", RING)
    return x


def other_places(x):
    for k in range(4):
        x = x + 2.0 * lax.ppermute(x, "x", [(i, (i + k) % 4) for i in range(4)])
        x = jnp.cumsum(x) + lax.psum(jnp.cumsum(x)[k], "x")
    return x


def other_reductions(x):
    for k in range(4):
        reduce = (lax.psum, lax.pmax)[k % 2]
        x = x / 2 + reduce(jnp.sort(x) * 0.5, "x") + reduce(x * 0.5, "x")
    return x


def other_results(x):
    """Each part alike, and something else of it is wanted."""
    first = second = x
    kept = []
    for k in range(4):
        first, second = jnp.cumsum(first), jnp.sort(second)
        total = lax.psum(first * second, "x")
        kept.append((first, second, first * second)[k % 3])
        first, second = first / total, second + total
    return first + second + sum(kept)


def other_types(x):
    for kind in (jnp.float32, jnp.bfloat16, jnp.float32, jnp.float16, jnp.bfloat16):
        narrow = x.astype(kind)
        x = x / 2 + lax.psum(jnp.cumsum(narrow) * narrow, "x").astype(jnp.float32) / 8
    return x.astype(jnp.bfloat16)  # which is as much as is the same


def other_keys(x):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("x"))
    for k in range(4):
        key, own = jax.random.split(jax.random.fold_in(key, k))
        x = x / 2 + lax.psum(jax.random.normal(own, x.shape) * x, "x")
    return x


def other_branches(x):
    for k in range(4):
        branches = (jnp.sin, jnp.cos) if k % 2 else (jnp.cos, jnp.exp)
        x = lax.cond(lax.axis_index("x") > 1, *branches, x)
        x = lax.scan(lambda c, _, k=k: (jnp.sin(c) * (k + 1.0), None), x, None, 3)[0]
        x = x + lax.psum(x / 4, "x")
    return x


def other_factors(x):
    """Sums of the same two products, of the same two factors, and of others."""
    for k in range(4):
        a, b = x.reshape(2, 2), jnp.cumsum(x).reshape(2, 2)
        c, d = (b, a) if k % 2 else (a, b)
        x = jnp.sin(x + lax.psum(a @ b - c @ d + b @ c, "x").reshape(4) / 4)
    return x


@pytest.mark.parametrize("at_once", [1, 3, 4])
@pytest.mark.parametrize(
    "body",
    [other_numbers, other_places, other_reductions, other_results, other_types, other_keys,
     other_branches, other_factors],
)  # fmt: skip
def test_parts_that_are_alike_but_for_something(body, at_once):
    f, x = sharded(body), normal(16)
    assert_same(sw.simulate(f, at_once=at_once)(x), jax.jit(f)(x))


def long_chain(x, count=60, odd=(), kinds=3):
    """Steps of a few kinds that come again and again, with numbers of their own."""
    for k in range(count):
        if k in odd:
            x = lax.psum(x, "x") / 4 + x
        moved = lax.ppermute(x, "x", [(i, (i + k % kinds) % 4) for i in range(4)])
        x = jnp.sin(x) if k % kinds == 2 else x - moved * (0.1 / (k + 1))
    return x


@pytest.mark.parametrize(("odd", "kinds"), [((), 1), ((0, 47), 3), ((17, 18, 40), 5)])
def test_a_long_chain_is_what_devices_do(odd, kinds):
    f, x = sharded(lambda x: long_chain(x, 48, odd, kinds)), jnp.arange(32.0).reshape(8, 4) / 70

    def both(f):
        return jax.jit(jax.value_and_grad(lambda x: jnp.sum(f(x) * normal(8, 4))))(x)

    assert_same(both(sw.simulate(f)), both(f))


def test_a_long_chain_is_lowered_by_blocks():
    """More steps add a few calls, and the numbers of each step."""

    def lines(count):
        f = sharded(lambda x: long_chain(x, count, kinds=5))
        text = jax.jit(sw.simulate(f)).lower(jnp.ones((8, 4))).as_text()
        return text.count("stablehlo."), text.count(" call ")

    (few, called), (many, called_too) = lines(60), lines(180)
    assert many - few <= 2 * 120 + 12  # a number for each step, and what does not fill a block
    assert called_too - called <= 12


def test_a_plan_tells_of_every_loop_that_repeats():
    f, args = written_out(5)
    assert len(sw.simulate(f, at_once="auto").plan(*args).loops) >= 10


def test_an_operation_that_was_given_another_function_runs_it():
    var = Var((), jnp.dtype("float32"))
    op = Leaf([var], [var], "neg", _jax.applying(lax.neg_p, {}, ()))
    assert op.primitive is lax.neg_p
    assert dataclasses.replace(op, run=lambda x: [x]).primitive is None

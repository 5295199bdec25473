"""What simulating costs in memory and operations, by XLA's own figures: no clock is looked at."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._engine.lower.cost import Machine

from ..support import real_mesh

LAYERS, WIDTH, ROWS, SHARDS = 6, 64, 512, 64


def params():
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return jnp.stack([jax.random.normal(key, (WIDTH, WIDTH)) for key in keys]) / WIDTH**0.5


def batch():
    return jax.random.normal(jax.random.key(1), (ROWS, WIDTH))


def loss(w, x):
    """Layers in a scan, rematerialised, computed in bfloat16."""

    @jax.checkpoint
    def layer(x, own):
        return jnp.tanh(x @ own.astype(jnp.bfloat16)), None

    x, _ = lax.scan(layer, x.astype(jnp.bfloat16), w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def by_autodiff(w, x):
    """Autodiff sums the gradient of each layer, inside the loop over the layers."""
    value, grads = jax.value_and_grad(lambda w: lax.pmean(loss(w, x), "x"))(w)
    return value, w - 0.1 * grads


def summed_by_hand(w, x):
    """Every device has gradients of its own, of all layers, which are summed after the loop."""
    own = lax.pcast(w, "x", to="varying")
    value, grads = lax.pmean(jax.value_and_grad(loss)(own, x), "x")
    return value, w - 0.1 * grads


def rows_of_all_kinds(w, x):
    """Rows that are summed, that are read besides, that are whole numbers, handed out twice."""

    def turn(x, own):
        x = jnp.tanh(x @ own)
        rows = jnp.mean(x, 0), x[0], (x[0] > 0).astype(jnp.int32), jnp.float32(2.0)
        return x, (*rows, rows[0], x.T @ x / len(x))

    _, (sums, firsts, signs, two, again, squares) = lax.scan(turn, x, w, reverse=True)
    read = lax.pmean(jnp.sum(sums * again), "x")
    total = lax.psum((sums, firsts, signs, two, squares), "x")
    return read, (*total, lax.pmax(lax.stop_gradient(firsts), "x"))


def gathered(w, x):
    """Every device has a part of each layer, and gathers it in the loop."""

    @jax.checkpoint
    def layer(x, own):
        return jnp.tanh(x @ lax.all_gather(own, "x", tiled=True)), None

    def mean(w):
        out, _ = lax.scan(layer, x, w)
        return lax.pmean(jnp.mean(out**2), "x")

    value, grads = jax.value_and_grad(mean)(w)
    return value, w - 0.1 * grads


def with_late_carry(w, x):
    """The loop itself uses what comes of the meeting, one turn later."""

    def layer(carry, own):
        x, norm = carry
        x = jnp.tanh(x @ own)
        return (x, norm + lax.psum(jnp.sum(x), "x")), lax.pmax(jnp.max(x), "x") * norm

    (_, norm), seen = lax.scan(layer, (x, jnp.float32(1.0)), w)
    return norm, seen


SPECS = {
    by_autodiff: ((P(), P("x")), (P(), P())),
    summed_by_hand: ((P(), P("x")), (P(), P())),
    rows_of_all_kinds: ((P(), P("x")), (P(), P())),
    gathered: ((P(None, "x"), P("x")), (P(), P(None, "x"))),
    with_late_carry: ((P(), P("x")), (P(), P())),
}
TRAINED = (by_autodiff, summed_by_hand)


def program(body):
    ins, outs = SPECS[body]

    def f(w, x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs)(w, x)

    return f


def by_hand(w, x):
    """A scan over slices that adds up the gradients."""

    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(w, part)), None

    zero = (jnp.zeros(()), jnp.zeros_like(w))
    (value, grads), _ = lax.scan(add, zero, x.reshape(SHARDS, -1, WIDTH))
    return value / SHARDS, w - 0.1 * grads / SHARDS


def unsharded(w, x):
    value, grads = jax.value_and_grad(loss)(w, x)
    return value, w - 0.1 * grads


def compiled(f):
    return jax.jit(f).lower(jax.eval_shape(params), jax.eval_shape(batch)).compile()


def temporaries(f):
    found = compiled(f).memory_analysis()
    assert found is not None
    return found.temp_size_in_bytes


@pytest.mark.parametrize("at_once", [1, 2, 3, "auto"])
@pytest.mark.parametrize("body", SPECS, ids=lambda body: body.__name__)
def test_a_loop_taken_apart_gives_what_devices_give(body, at_once):
    f = program(body)
    want = jax.device_get(jax.jit(lambda w, x: f(w, x, mesh=real_mesh(x=4)))(params(), batch()))
    found = sw.simulate(f, mesh=sw.mesh(x=4), at_once=at_once)(params(), batch())
    # Blocks of bfloat16 gradients are rounded once where devices round them one by one.
    rtol, atol = (1e-3, 1e-5) if body in TRAINED else (1e-5, 1e-6)
    for own, real in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert own.dtype == real.dtype
        np.testing.assert_allclose(own, real, rtol=rtol, atol=atol)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_loop_of_no_turns_has_no_rows(at_once):
    f, none = program(rows_of_all_kinds), jnp.zeros((0, WIDTH, WIDTH))
    want = jax.eval_shape(lambda: f(none, batch(), mesh=real_mesh(x=4)))
    found = sw.simulate(f, mesh=sw.mesh(x=4), at_once=at_once)(none, batch())
    assert [(out.shape, out.dtype) for out in jax.tree.leaves(found)] == [
        (out.shape, out.dtype) for out in jax.tree.leaves(want)
    ]


@pytest.mark.parametrize("at_once", [1, 3])
def test_derivatives_of_rows_that_are_added_as_they_are_made(at_once):
    f = program(rows_of_all_kinds)

    def total(w, mesh):
        run = (
            sw.simulate(f, mesh=mesh, at_once=at_once) if mesh is virtual else partial(f, mesh=mesh)
        )
        own = run(w, batch())
        return sum(jnp.sum(jnp.sin(out.astype(jnp.float32))) for out in jax.tree.leaves(own))

    real, virtual = real_mesh(x=4), sw.mesh(x=4)
    found, want = (
        jax.jit(jax.grad(partial(total, mesh=mesh)))(params()) for mesh in (virtual, real)
    )
    np.testing.assert_allclose(found, jax.device_get(want), rtol=1e-4, atol=1e-5)


def test_one_shard_at_a_time_takes_what_a_scan_by_hand_takes():
    """Or less: each row of a gradient is added to the total as soon as it is made."""
    hand = temporaries(by_hand)
    for body, share in ((by_autodiff, 1.1), (summed_by_hand, 0.5)):
        one = temporaries(sw.simulate(program(body), mesh=sw.mesh(x=SHARDS), at_once=1))
        assert one <= share * hand, body.__name__


def test_shards_at_once_keep_no_gradients_of_their_own():
    for body in TRAINED:
        many = temporaries(sw.simulate(program(body), mesh=sw.mesh(x=SHARDS), at_once=16))
        assert many <= 0.5 * 16 * params().nbytes, body.__name__


def test_shards_that_gather_in_a_loop_take_the_memory_of_few():
    f = sw.simulate(program(gathered), mesh=sw.mesh(x=SHARDS), at_once=1)
    assert temporaries(f) <= 0.5 * temporaries(unsharded)


def test_a_block_of_shards_multiplies_once():
    """The gradients of shards that are computed at once are one product, not one for each."""
    f = sw.simulate(program(by_autodiff), mesh=sw.mesh(x=SHARDS), at_once=8)
    text = jax.jit(f).lower(jax.eval_shape(params), jax.eval_shape(batch)).as_text()
    gradients = [line for line in text.splitlines() if "dot_general" in line]
    assert gradients
    assert not any(f"-> tensor<8x{WIDTH}x{WIDTH}x" in line for line in gradients)


def test_auto_says_what_it_chose_and_takes_a_part_of_the_memory():
    simulated = sw.simulate(program(by_autodiff), mesh=sw.mesh(x=SHARDS), at_once="auto")
    (loop,) = simulated.plan(params(), batch()).loops
    assert loop.axis == "x"
    assert loop.shards == SHARDS
    assert SHARDS % loop.at_once == 0
    assert f"{loop.at_once} of {SHARDS} shards over 'x' at once" in str(loop)


def test_a_large_program_is_computed_a_quarter_at_a_time():
    """From shapes alone: a program of many gigabytes."""

    def f(x, *, mesh):
        body = lambda x: lax.psum(jnp.sum(jnp.sin(x) @ x.T), "x")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    x = jax.ShapeDtypeStruct((1 << 20, 1024), jnp.float32)
    (loop,) = sw.simulate(f, mesh=sw.mesh(x=64), at_once="auto").plan(x).loops
    assert 1 <= loop.at_once <= 64 // 4


def test_auto_uses_its_share_of_the_memory_and_more_only_where_that_is_clearly_faster(monkeypatch):
    """The more shards the better up to the share: an estimate is not exact."""

    def f(x, w, *, mesh):
        body = lambda x, w: lax.psum(jnp.sum(jnp.tanh(x @ w)), "x")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())(x, w)

    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64 * 256, 128), (128, 128)))

    def chosen(rates):
        machine = Machine(products=rates, bytes=((1.0, 1e12),), start=0.0)
        monkeypatch.setattr("shardwise._engine.simulate.machine", lambda: machine)
        (loop,) = sw.simulate(f, mesh=sw.mesh(x=64), at_once="auto").plan(x, w).loops
        return loop.at_once

    # A quarter of the shards and the total are more than a quarter of the memory.
    assert chosen(((1e6, 1e11),)) == 8
    # A shard's product has 8.4 million operations; all of them together reach the full rate.
    assert chosen(((1e6, 1e11), (5.4e8, 1.1e11))) == 8
    assert chosen(((1e6, 1e10), (5.4e8, 1e11))) == 64


def test_auto_takes_no_more_shards_than_a_cache_holds(monkeypatch):
    """Nor so many that every run has to get its memory anew."""
    monkeypatch.setattr("shardwise._engine.simulate.room", lambda: 1e12)

    def f(x, *, mesh):
        body = lambda x: lax.psum(jnp.sum(jnp.sin(jnp.roll(x, 1)) * x), "x")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    x = jax.ShapeDtypeStruct((64 * 2**18,), jnp.float32)  # a megabyte each

    def chosen(**known):
        machine = Machine(start=1e-4, **known)
        monkeypatch.setattr("shardwise._engine.simulate.machine", lambda: machine)
        (loop,) = sw.simulate(f, mesh=sw.mesh(x=64), at_once="auto").plan(x).loops
        return loop.at_once

    even = ((1.0, 1e10),)
    cached = ((4e6, 1e10), (8e6, 1e9))
    assert chosen(bytes=cached) < chosen(bytes=even)
    assert chosen(bytes=even, fresh=1e-9, retained=8e6) < chosen(
        bytes=even, fresh=1e-9, retained=1e12
    )
    assert chosen(bytes=even, fresh=1e-9, retained=1e12) == chosen(bytes=even)


def test_auto_takes_all_shards_where_they_meet_in_every_turn(monkeypatch):
    """What is kept of all of them need not be cut up, and memory is got once for all turns."""

    def f(x, *, mesh, turns):
        def turn(x, _):
            right = lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)])
            return jnp.cumsum(jnp.sin(right), 0), None

        body = lambda x: lax.scan(turn, x, None, length=turns)[0]  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    x = jax.ShapeDtypeStruct((8 * 2**18,), jnp.float32)  # a megabyte each

    def chosen(turns, **known):
        monkeypatch.setattr(
            "shardwise._engine.simulate.machine", lambda: Machine(start=0.0, **known)
        )
        simulated = sw.simulate(partial(f, turns=turns), mesh=sw.mesh(x=8), at_once="auto")
        return max(loop.at_once for loop in simulated.plan(x).loops)

    assert chosen(1) == 8
    assert chosen(1, fresh=1e-8, retained=4e6) == 1
    assert chosen(100, fresh=1e-8, retained=4e6) == 8


def test_an_update_of_what_is_split_is_done_on_the_whole():
    """Its results are there anyway: a loop over the devices would stack them once more."""

    def f(w, m, v, x, *, mesh):
        def body(w, m, v, x):
            grads = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ lax.all_gather(w, "x", tiled=True))))(w)
            grads = grads / 8
            m, v = 0.9 * m + 0.1 * grads, 0.99 * v + 0.01 * grads**2
            return w - m / (jnp.sqrt(v) + 1e-3), m, v

        part = P("x")
        specs = {"in_specs": (part,) * 4, "out_specs": (part,) * 3}
        return jax.shard_map(body, mesh=mesh, **specs)(w, m, v, x)

    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1024, 1024), (64, 1024)))
    compiled = jax.jit(sw.simulate(f, mesh=sw.mesh(x=8), at_once=1)).lower(w, w, w, x).compile()
    results = 3 * 4 * 1024**2
    assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * results


def test_what_needs_no_batching_keeps_no_shards_apart():
    """JAX has no rule to batch an `iota`, and needs none: it has nothing to be batched."""

    def f(x, *, mesh):
        def body(x):
            rows = lax.map(lambda row: jnp.sum(row * jnp.arange(4.0)), x)
            return lax.psum(jnp.sum(rows), "x")

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(x)

    x = jnp.arange(64.0 * 4).reshape(64, 4)
    simulated = sw.simulate(f, mesh=sw.mesh(x=64), at_once=8)
    assert [loop.at_once for loop in simulated.plan(x).loops] == [8]
    np.testing.assert_allclose(simulated(x), sw.simulate(f, mesh=sw.mesh(x=64))(x), rtol=1e-6)


def test_eager_calls_compile_once():
    compiles = []

    def listener(event, duration_secs, **kwargs):
        compiles.append(event)

    f = sw.simulate(program(by_autodiff), mesh=sw.mesh(x=8))
    args = params(), batch()
    jax.block_until_ready(args)
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        f(*args)
        f(*args)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert sum(name.endswith("backend_compile_duration") for name in compiles) == 1

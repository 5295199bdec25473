"""What is kept over a meeting of devices: the least, and what a program gives stays the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._engine.lower import recompute

from ..support import assert_same, normal, real_mesh
from ..test_examples import load

ROWS = normal(16, 6)
RING = [(i, (i + 1) % 8) for i in range(8)]


@pytest.fixture(params=[1, 3, 8], ids=lambda k: f"{k} at once")
def at_once(request):
    return request.param


@pytest.fixture
def eager(monkeypatch):
    """Arrays of any size are worth it."""
    monkeypatch.setattr(recompute, "SMALL", -1)


def activations(x):
    """Of one activation a backward pass needs many things that follow from it."""

    def loss(x):
        h = jax.nn.gelu(x * 1.1)
        y = h + lax.ppermute(h, "x", RING)
        return lax.psum(jnp.sum(jax.nn.gelu(y) * y), "x")

    return jax.grad(loss)(x)


def computed_again(x):
    """What is computed again for the backward pass has no use for what the devices send."""

    @jax.checkpoint
    def layer(x, scale):
        h = jnp.tanh(x * scale)
        return lax.ppermute(h * h, "x", RING) + x, None

    def loss(x):
        out, _ = lax.scan(layer, x, jnp.arange(1.0, 4.0))
        return lax.psum(jnp.sum(out**2), "x")

    return jax.grad(loss)(x)


def read_everywhere(x):
    """Values that several stages read, that are given out as well, that only some read."""
    a = jnp.sin(x)
    b = a * 2 + lax.psum(a, "x")
    both = jnp.sort(x), jnp.cos(a)
    c = lax.pmax(b, "x") + a + both[1]
    d = lax.all_gather(c, "x").mean(0) + both[0] + jnp.exp(a)
    return a, b - d, both[1] * c


def of_other_types(x):
    whole = (x * 10).astype(jnp.int32)
    told = whole % 3 == lax.axis_index("x") % 3
    half = x.astype(jnp.bfloat16) * 3
    met = lax.psum(whole, "x") + whole
    later = jnp.where(told, half.astype(jnp.float32), met.astype(jnp.float32))
    return later + lax.pmin(later, "x") * jnp.where(told, 1.0, 2.0) + half.astype(jnp.float32)


def with_loops_and_branches(x):
    me = lax.axis_index("x")
    turned = lax.fori_loop(0, 3, lambda i, x: x + jnp.sin(x) * i, x)
    chosen = lax.cond(me % 2 == 0, jnp.sin, jnp.cos, x)
    stacked = lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1]
    met = lax.psum(x, "x")
    return turned * met + chosen + jnp.sum(stacked * lax.ppermute(met + x, "x", RING))


def random_numbers(x):
    key = jax.random.fold_in(jax.random.key(0), lax.axis_index("x"))
    noise = jax.random.normal(key, x.shape)
    return lax.psum(x, "x") * noise + jnp.sin(noise) * lax.pmax(x, "x")


BODIES = [
    activations, computed_again, read_everywhere, of_other_types, with_loops_and_branches,
    random_numbers,
]  # fmt: skip


def program(body, *, mesh):
    return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_the_same_numbers(body, at_once, eager):
    want = jax.jit(program(body, mesh=real_mesh(x=8)))(ROWS)
    f = lambda x, *, mesh: program(body, mesh=mesh)(x)  # noqa: E731
    assert_same(sw.simulate(f, mesh=sw.mesh(x=8), at_once=at_once)(ROWS), want)


@pytest.mark.parametrize("name", ["pipeline", "tensor_parallel", "zero", "transformer_2d"])
def test_the_same_numbers_of_the_examples(name, at_once, eager):
    module = load(name)
    sizes = {"data": 4, "model": 2} if name == "transformer_2d" else {module.AXES[0]: 8}
    want = jax.jit(functools.partial(module.step, mesh=real_mesh(**sizes)))(*module.example_args())
    got = sw.simulate(module.step, mesh=sw.mesh(**sizes), at_once=at_once)(*module.example_args())
    assert_same(got, want)


def test_what_does_something_besides_is_done_once_and_where_it_stands(eager):
    seen = []

    def body(x):
        y = jnp.sin(x)
        jax.debug.callback(lambda y: seen.append(float(y)), y[0, 0])
        return jnp.cos(y) * lax.psum(x, "x")

    f = lambda x, *, mesh: program(body, mesh=mesh)(x)  # noqa: E731
    jax.block_until_ready(sw.simulate(f, mesh=sw.mesh(x=8), at_once=1)(ROWS))
    jax.effects_barrier()
    assert seen == pytest.approx(np.sin(ROWS[::2, 0]).tolist())


def temporaries(f, *args):
    return jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes


SIZES = {
    "tensor_parallel": (0.5, {"examples": 512, "features": 128, "hidden": 1024, "targets": 128}),
    "zero": (0.5, {"examples": 512, "features": 256, "hidden": 1024, "targets": 256}),
    "pipeline": (0.9, {"layers": 16, "microbatches": 8, "size": 16, "features": 512}),
}


@pytest.mark.parametrize("name", SIZES)
def test_less_is_kept_than_what_the_devices_keep_together(name):
    share, sizes = SIZES[name]
    module = load(name)
    args = module.example_args(**sizes)
    (axis,) = module.AXES
    devices = temporaries(functools.partial(module.step, mesh=real_mesh(**{axis: 8})), *args)
    simulated = sw.simulate(module.step, mesh=sw.mesh(**{axis: 8}), at_once=1)
    assert temporaries(simulated, *args) <= share * 8 * devices


def test_of_one_activation_one_thing_is_kept():
    """Of `gelu` autodiff keeps several arrays of the size of its argument."""
    wide = normal(8 * 64, 4096)

    def f(x, *, mesh):
        return program(activations, mesh=mesh)(x)

    # x itself, which is given; `y` and what comes back of it over the devices.
    simulated = sw.simulate(f, mesh=sw.mesh(x=8), at_once=1)
    assert temporaries(simulated, wide) <= 4.5 * wide.nbytes


# --- totals that a loop carries


def added(more, x):
    return (more[0] + x * 2,)


def two_added(more, x):
    return more[0] + x, x + more[1]


def exchanged(more, x):
    """What one total becomes comes of the other."""
    return more[1] + x, more[0] + x


def read_besides(more, x):
    return more[0] + x, jnp.sin(more[0])


def given_twice(more, x):
    new = more[0] + x
    return new, new


def of_itself(more, x):
    return (more[0] + more[0],)


def narrow(more, x):
    return (more[0].astype(jnp.bfloat16) + x.astype(jnp.bfloat16),)


TURNS = [added, two_added, exchanged, read_besides, given_twice, of_itself, narrow]


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__)
def test_totals_of_a_loop_in_which_devices_meet(turn, at_once):
    count = len(jax.eval_shape(turn, [ROWS, ROWS], ROWS))
    dtype = jnp.bfloat16 if turn is narrow else jnp.float32

    def body(x):
        def step(carry, scale):
            x, more = carry
            x = lax.ppermute(jnp.tanh(x * scale), "x", RING)
            return (x, turn(more, x)), jnp.sum(x)

        start = tuple((0 * x + 0.5 + i).astype(dtype) for i in range(count))
        (x, more), sums = lax.scan(step, (x, start), jnp.arange(1.0, 5.0))
        return x, more, sums[None]

    want = jax.jit(program(body, mesh=real_mesh(x=8)))(ROWS)
    f = lambda x, *, mesh: program(body, mesh=mesh)(x)  # noqa: E731
    assert_same(sw.simulate(f, mesh=sw.mesh(x=8), at_once=at_once)(ROWS), want)


def test_a_total_is_written_over_in_place():
    """Else another stack of all totals would be made in each turn."""
    width = 512

    def f(x, *, mesh):
        def body(x):
            def step(carry, _):
                x, total = carry
                return (lax.ppermute(jnp.tanh(x), "x", RING), total + x.T @ x), None

            total = jnp.zeros((width, width)) + 0 * x[0]
            return lax.scan(step, (x, total), length=5)[0]

        return program(body, mesh=mesh)(x)

    simulated = sw.simulate(f, mesh=sw.mesh(x=8), at_once=1)
    stack = 8 * width * width * 4
    assert temporaries(simulated, normal(64, width)) <= stack / 2


def test_long_programs_are_not_computed_again_and_again(eager):
    """What a layer leaves follows from what all before it left: from the last one is enough."""

    def operations(layers):
        def body(x):
            def loss(x):
                for i in range(layers):
                    x = x + lax.ppermute(jax.nn.gelu(x * (i + 1.0)), "x", RING) * jnp.tanh(x)
                return lax.psum(jnp.sum(x), "x")

            return jax.grad(loss)(x)

        f = lambda x, *, mesh: program(body, mesh=mesh)(x)  # noqa: E731
        lowered = jax.jit(sw.simulate(f, mesh=sw.mesh(x=8), at_once=1)).lower(ROWS)
        return lowered.as_text().count(" = ")

    assert operations(32) <= 2.2 * operations(16)

"""Shards computed together give what each gives alone, also where a vmap would not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh


def hardware_random_numbers(x):
    """Under vmap, these keys draw other numbers than one by one."""
    key = jax.random.fold_in(jax.random.key(0, impl="rbg"), lax.axis_index("x"))
    return x + jax.random.normal(key, x.shape)


def raw_random_bits(x):
    start = jnp.arange(4, dtype="uint32") + lax.axis_index("x").astype("uint32")
    bits = lax.rng_bit_generator(start, x.shape)[1]
    return (bits % 1000).astype("float32") * x


def without_a_batching_rule(x):
    sizes = jnp.array([x.shape[0] - 1, 1], jnp.int32) - 0 * lax.axis_index("x")
    return lax.ragged_dot(x, jnp.stack([jnp.eye(3), 2 * jnp.eye(3)]), sizes)


def with_a_batching_rule_of_its_own(x):
    @jax.custom_batching.custom_vmap
    def call(x):
        return jnp.sin(x)

    @call.def_vmap
    def _(size, batched, x):
        return jnp.cos(x), True

    return call(x)


doubled = Primitive("doubled")
doubled.def_abstract_eval(lambda x: x)
doubled.def_impl(lambda x: 2 * x)
mlir.register_lowering(doubled, mlir.lower_fun(lambda x: 2 * x, multiple_results=False))


def with_a_primitive_of_its_own(x):
    return doubled.bind(x) + lax.pmean(x, "x")


@custom_partitioning
def halved(x):
    return x / 2


halved.def_partition(
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    partition=lambda mesh, args, result: (
        *(mesh, lambda x: x / 2, args[0].sharding),
        (args[0].sharding,),
    ),
    sharding_rule="i j -> i j",
)


def with_a_partitioning_of_its_own(x):
    return halved(x) + lax.pmean(x, "x")


def with_a_callback(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda a: np.asarray(a) - np.asarray(a).mean(), like, x)


def with_a_branch_that_guards(x):
    """Under vmap both branches run: the one not taken would loop for ever."""
    loop = lambda x: lax.while_loop(lambda v: jnp.all(v < 9), lambda v: v * 2, x)  # noqa: E731
    return lax.cond(jnp.all(x > 0.1), loop, lambda x: x, jnp.abs(x) * (lax.axis_index("x") > 1))


def in_a_loop_with_a_collective(x):
    def step(carry, _):
        return hardware_random_numbers(carry) + lax.pmean(carry, "x"), None

    return lax.scan(step, x, None, length=2)[0]


BODIES = [
    hardware_random_numbers,
    raw_random_bits,
    without_a_batching_rule,
    with_a_batching_rule_of_its_own,
    with_a_primitive_of_its_own,
    with_a_partitioning_of_its_own,
    with_a_callback,
    with_a_branch_that_guards,
    in_a_loop_with_a_collective,
]


@pytest.mark.parametrize("at_once", [1, 3, "auto"])
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_at_once_changes_nothing(body, at_once):
    def program(x, *, mesh):
        specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    x = normal(16, 3)
    real = jax.jit(lambda x: program(x, mesh=real_mesh(x=4)))
    with jax.numpy_dtype_promotion("standard"):
        want = jax.device_get(real(x))
        assert_same(sw.simulate(program, mesh=sw.mesh(x=4), at_once=at_once)(x), want)


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 8, 9, "auto"])
@pytest.mark.parametrize("sizes", [{"x": 8}, {"x": 5}, {"x": 2, "y": 3}], ids=str)
def test_what_fills_up_the_last_turn_leaves_no_trace(sizes, at_once):
    """Sums, largest and smallest of numbers that a shard too many would change."""
    axes = tuple(sizes)

    def program(x, *, mesh):
        def body(x):
            here = x + lax.axis_index(axes).astype("float32")
            return lax.psum(1 / here, axes), lax.pmin(here, axes), lax.pmax(-here, axes), here

        return jax.shard_map(body, mesh=mesh, in_specs=P(axes), out_specs=(P(), P(), P(), P(axes)))(
            x
        )

    n = int(np.prod(list(sizes.values())))
    x = np.ones((n, 2), np.float32)
    here = 1.0 + np.arange(n, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    want = (1 / here).sum(0, keepdims=True), here[:1], -here[:1], here
    assert_same(sw.simulate(program, mesh=sw.mesh(**sizes), at_once=at_once)(x), want)

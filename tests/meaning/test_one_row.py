"""One row for each device, the commonest size in tests, is proved as any other is."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

SHAPE = jax.ShapeDtypeStruct
FLOAT = jnp.float32


def labels_by_row(logits, y):
    return -jax.nn.log_softmax(logits)[jnp.arange(y.shape[0]), y].mean()


def labels_along(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], -1).mean()


def labels_in_vmap(logits, y):
    return -jax.vmap(lambda row, label: jax.nn.log_softmax(row)[label])(logits, y).mean()


def labels_as_one_hot(logits, y):
    return -(jax.nn.one_hot(y, logits.shape[-1]) * jax.nn.log_softmax(logits)).sum(-1).mean()


def attention(w, x):
    rows, length, width = x.shape
    q, k, v = ((x @ w).reshape(rows, length, 2, width // 2) for w in (w, w + 1, w * 2))
    scores = jnp.einsum("bthd,bshd->bhts", q, k)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(rows, length, width)


LOSSES = [labels_by_row, labels_along, labels_in_vmap, labels_as_one_hot]


def step(loss):
    def program(w, x, y, *, mesh):
        def body(w, x, y):
            def mean(w):
                return lax.pmean(loss(attention(w, x)[:, 0] @ w, y), "data")

            return jax.value_and_grad(mean)(w)

        specs = (P(), P("data"), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y)

    return program


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_proved_for_any_number_of_rows(loss, rows):
    args = SHAPE((4, 4), FLOAT), SHAPE((rows, 3, 4), FLOAT), SHAPE((rows,), jnp.int32)
    proof = sw.prove(step(loss), *args, mesh=sw.mesh(data=8), run=False)
    assert proof.ok, proof


@pytest.mark.parametrize("rows", [8, 16])
def test_a_table_of_one_feature_is_not_read_as_rows(rows):
    """A dimension of size 1 that no device has a part of stays what it is."""

    def program(table, index, *, mesh):
        def body(table, index):
            return jax.grad(lambda t: lax.psum((t[index] ** 2).sum(), "data"))(table)

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(
            table, index
        )

    args = SHAPE((5, 1), FLOAT), SHAPE((rows,), jnp.int32)
    assert sw.prove(program, *args, mesh=sw.mesh(data=8), run=False).ok


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize("varying", [True, False])
def test_scales_of_scanned_layers_are_proved_for_any_number_of_rows(rows, varying):
    """What the batch adds up in every layer is added up in the loop or behind it."""

    def loss(scales, x):
        def layer(x, scale):
            return jnp.sin(x / jnp.mean(x**2, -1, keepdims=True) * scale), None

        return jnp.mean(lax.scan(layer, x, scales)[0] ** 2)

    def program(scales, x, *, mesh):
        def body(scales, x):
            if not varying:
                return jax.grad(lambda s: lax.pmean(loss(s, x), "data"))(scales)
            apart = lax.pcast(scales, "data", to="varying")
            return lax.pmean(jax.grad(loss)(apart, x), "data")

        specs = (P(), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(scales, x)

    args = SHAPE((3, 4), FLOAT), SHAPE((rows, 5, 4), FLOAT)
    proof = sw.prove(program, *args, mesh=sw.mesh(data=8), run=False)
    assert proof.ok, proof


REDUCTIONS = {"sum": jnp.sum, "max": jnp.max, "min": jnp.min, "prod": jnp.prod}


def stacked(x):
    """For each of 4 steps, a row of 4, by a loop that is not independent of its order."""

    def step(carry, row):
        carry = jnp.sin(carry + row)
        return carry, carry * jnp.arange(1.0, 17).reshape(4, 4)

    return lax.scan(step, jnp.zeros((4, 4)), x)[1]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), (0, 2), (0, 1, 2), (0,)])
def test_what_a_loop_stacks_is_reduced_in_it_or_behind_it(name, axes):
    """All dimensions have the same size, so only their identity tells them apart."""
    reduced = REDUCTIONS[name]

    def behind(x):
        return reduced(-stacked(x), axes)

    def within(axes):
        inner = [axis - 1 for axis in axes if axis]

        def program(x):
            def step(carry, row):
                carry = jnp.sin(carry + row)
                new = -carry * jnp.arange(1.0, 17).reshape(4, 4)
                return carry, reduced(new, tuple(inner)) if inner else new

            parts = lax.scan(step, jnp.zeros((4, 4)), x)[1]
            return reduced(parts, 0) if 0 in axes else parts

        return program

    args = (SHAPE((4, 4, 4), FLOAT),)
    proof = sw.prove(behind, *args, mesh={"data": 1}, reference=within(axes), run=False)
    assert proof.ok, proof
    for others in [(1,), (2,), (1, 2), (0, 2), (0, 1), (0, 1, 2), (0,)]:
        if others != axes and len(others) == len(axes):
            other = sw.prove(behind, *args, mesh={"data": 1}, reference=within(others), run=False)
            assert not other.ok, (others, other)

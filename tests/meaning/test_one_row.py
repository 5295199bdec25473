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

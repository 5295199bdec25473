"""Training steps with the losses that people use are proved; their wrong twins are not."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import P, lax, shard_map

import shardwise as sw

WHOLE = P()
SHAPES = [
    jax.ShapeDtypeStruct((8, 5), jnp.float32),
    jax.ShapeDtypeStruct((16, 8), jnp.float32),
    jax.ShapeDtypeStruct((16,), jnp.int32),
]
CHOSEN = jnp.array([3, 0, 1])


def one_hot(y):
    return jax.nn.one_hot(y, 5)


def picked(z, y):
    rows, columns = (jnp.arange(size) for size in y.shape)
    return -jax.nn.log_softmax(z)[rows[:, None], columns, y]


LOSSES = {
    "integer labels": optax.softmax_cross_entropy_with_integer_labels,
    "one-hot labels": lambda z, y: optax.softmax_cross_entropy(z, one_hot(y)),
    "picked by position": lambda z, y: -jax.nn.log_softmax(z)[jnp.arange(len(y)), y],
    "picked by position of two": lambda z, y: picked(z.reshape(-1, 2, 5), y.reshape(-1, 2)),
    "sigmoid": lambda z, y: optax.sigmoid_binary_cross_entropy(z, one_hot(y)).mean(-1),
    "squares": lambda z, y: optax.l2_loss(z, one_hot(y)).mean(-1),
    "huber": lambda z, y: optax.huber_loss(z, one_hot(y)).mean(-1),
}

ALIKE = {
    "columns": lambda z: z[:, CHOSEN],
    "one column": lambda z: jnp.take(z, 1, axis=1),
    "padded": lambda z: jnp.pad(z, ((0, 0), (1, 1)), constant_values=2.0),
    "sliced": lambda z: z[:, ::2],
    "joined": lambda z: jnp.concatenate([z, 2 * z[:, :2]], 1),
    "running": lambda z: jnp.cumsum(z, 1),
    "sorted": lambda z: jnp.sort(z, 1)[:, :2],
    "added to": lambda z: z.at[:, CHOSEN].add(1.0),
    "masked": lambda z: z * jnp.zeros_like(z).at[:, CHOSEN].set(1.0),
}
"""Operations whose operand, or whose gradient of a mean, is the same for all rows."""


def by_hand(loss):
    """A step whose loss is a mean over all rows, with its gradient."""

    def body(w, x, y):
        return jax.value_and_grad(lambda w: lax.pmean(jnp.mean(loss(x @ w, y)), "data"))(w)

    return sharded(body)


def sharded(body, out_specs=WHOLE):
    def step(w, x, y, *, mesh):
        specs = (P(), P("data"), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=out_specs)(w, x, y)

    return step


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_with_a_loss_of_optax_is_proved(name):
    proof = sw.prove(by_hand(LOSSES[name]), *SHAPES, mesh={"data": [4]}, run=False)
    assert proof, proof


def test_a_data_parallel_step_with_integer_labels_is_proved_on_many_devices():
    step, state = data_parallel()
    batch = {"x": SHAPES[1].update(shape=(4096, 8)), "y": SHAPES[2].update(shape=(4096,))}
    proof = sw.prove(step, state, batch, mesh={"data": 1024}, run=False)
    assert proof, proof


def data_parallel():
    loss = LOSSES["integer labels"]
    step = sw.data_parallel(lambda w, batch: loss(batch["x"] @ w, batch["y"]), optax.sgd(0.1))
    return step, jax.eval_shape(step.init, SHAPES[0])


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_the_same_for_all_rows_is_the_same_on_each_device(name):
    step = by_hand(lambda z, y: ALIKE[name](z))
    proof = sw.prove(step, *SHAPES, mesh={"data": [4]}, run=False)
    assert proof, proof


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_the_same_for_the_rows_of_one_device_only_is_not_proved(name):
    def body(w, x, y):
        own = jnp.full((4, 5), 1.0 + lax.axis_index("data"))
        return ALIKE[name](own) * jnp.ones((4, 1))

    step = sharded(body, out_specs=P("data"))

    def plain(w, x, y):
        return ALIKE[name](jnp.full((16, 5), 1.0)) * jnp.ones((16, 1))

    proof = sw.prove(step, *SHAPES, mesh={"data": [4]}, reference=plain, run=False)
    assert proof.status != "proved", proof


@pytest.mark.parametrize("rows", [lambda n: jnp.arange(n)[::-1], lambda n: jnp.arange(n) + 1])
def test_other_positions_than_its_own_are_not_proved(rows):
    def loss(z, y):
        return -z[rows(len(y)), y] * jnp.arange(len(y))

    proof = sw.prove(by_hand(loss), *SHAPES, mesh={"data": [4]}, run=False)
    assert proof.status == "unknown", proof


@pytest.mark.parametrize("loss", ["integer labels", "picked by position"])
def test_gradients_that_are_averaged_twice_are_refuted(loss):
    loss = LOSSES[loss]

    def body(w, x, y):
        return lax.pmean(jax.grad(lambda w: loss(x @ w, y).mean())(w), "data")

    proof = sw.prove(sharded(body), *SHAPES, mesh={"data": [4]}, run=False)
    assert proof.status == "refuted"
    assert "4 times" in str(proof)


def test_the_line_is_where_the_rule_is_missing_and_not_where_rows_are_filled():
    def loss(z, y):
        wide = z + jnp.ones_like(z)
        return lax.reduce_window(wide, 0.0, lax.add, (1, 2), (1, 1), "VALID")  # here

    proof = sw.prove(by_hand(loss), *SHAPES, mesh={"data": [4]}, run=False)
    (finding,) = proof.findings
    assert finding.code == "SW409"
    assert "broadcast_in_dim" not in finding.message
    assert finding.where.line == loss.__code__.co_firstlineno + 2, proof


def test_a_batch_that_is_filled_up_is_told_and_on_which_mesh():
    step, state = data_parallel()
    batch = {"x": SHAPES[1].update(shape=(18, 8)), "y": SHAPES[2].update(shape=(18,))}
    proof = sw.prove(step, state, batch, mesh={"data": [2, 4]}, run=False)
    assert "UNKNOWN on {data: 4}; proved on {data: 2}, against" in str(proof)
    assert "18 rows do not divide over {data: 4}, so they are filled up to 20" in str(proof)
    assert "prove it with a batch that divides (20 rows here)" in str(proof)

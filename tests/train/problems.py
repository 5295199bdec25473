"""Things to train: models of each kind with their losses and data, and one-device training of them.

Every problem can be trained in two ways: by a step of shardwise, and by `one_device`, a plain loop
over whole batches that knows nothing of meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

OPTIMIZERS = {
    "momentum": lambda: optax.sgd(0.05, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "adamw, clipped": lambda: optax.chain(
        optax.clip_by_global_norm(0.3), optax.adamw(1e-2, weight_decay=0.1)
    ),
}
STEPS = 21


@dataclass(frozen=True)
class Problem:
    """Params, a loss of them with its options, and rows to train on."""

    params: Callable[[], Any]
    loss: Callable[..., Any]
    row: Callable[[np.random.Generator, int], Any]
    options: dict[str, Any]
    sizes: tuple[int, ...] = (16, 13)

    def batches(self) -> Iterator[Any]:
        """The same batches each time, of several sizes."""
        rng = np.random.default_rng(0)
        for k in range(STEPS):
            yield self.row(rng, self.sizes[k % len(self.sizes)])


def train(step: Any, problem: Problem) -> tuple[Any, list[Any]]:
    """The params after training with a step of shardwise, and the losses on the way."""
    state, losses = step.init(problem.params()), []
    for batch in problem.batches():
        state, metrics = step(state, batch)
        losses.append(metrics["loss"])
    return jax.device_get((state.variables, losses))


def one_device(problem: Problem, optimizer: Any, keys: Any = None) -> tuple[Any, list[Any]]:
    """The params after training on whole batches, by hand.

    Args:
        problem: What to train.
        optimizer: An optax transformation.
        keys: From step and rows to the further argument of the loss, where it takes one.
    """
    variables = problem.params()
    linen = isinstance(variables, dict) and "params" in variables
    mutable = problem.options.get("mutable")

    @jax.jit
    def update(variables: Any, opt_state: Any, batch: Any, number: Any) -> Any:
        def mean(params: Any) -> Any:
            given = {**variables, "params": params} if linen else params
            rest = (keys(number, jax.tree.leaves(batch)[0].shape[0]),) if keys else ()
            out = problem.loss(given, batch, *rest, axis=None)
            out, new = out if mutable else (out, {})
            losses, weights = out if isinstance(out, tuple) else (out, jnp.ones_like(out))
            return jnp.sum(losses * weights) / jnp.sum(weights), new

        params = variables["params"] if linen else variables
        (value, new), grads = jax.value_and_grad(mean, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return ({**variables, "params": params, **new} if linen else params), opt_state, value

    opt_state = optimizer.init(variables["params"] if linen else variables)
    losses = []
    for number, batch in enumerate(problem.batches()):
        variables, opt_state, value = update(variables, opt_state, batch, number)
        losses.append(value)
    return jax.device_get((variables, losses))


# --- a plain MLP with weights


def mlp_params() -> Any:
    rng = np.random.default_rng(1)
    shapes = {"hidden": (5, 16), "out": (16, 3)}
    return {k: (rng.normal(size=s) * 0.4).astype(np.float32) for k, s in shapes.items()}


def mlp_loss(params: Any, batch: Any, axis: str | None = "data") -> Any:
    hidden = jnp.tanh(batch["x"] @ params["hidden"])
    losses = ((hidden @ params["out"] - batch["y"]) ** 2).mean(-1)
    return losses, batch["weight"]


def mlp_rows(rng: np.random.Generator, rows: int) -> Any:
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    weight = rng.uniform(0.1, 2.0, rows).astype(np.float32)
    return {"x": x, "y": np.tanh(x[:, :3]), "weight": weight}


MLP = Problem(mlp_params, mlp_loss, mlp_rows, {})


# --- a Linen CNN with BatchNorm and dropout of its own for every example


class CNN(nn.Module):
    axis: str | None

    @nn.compact
    def __call__(self, x: Any, keys: Any) -> Any:
        x = nn.Conv(4, (3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=False, axis_name=self.axis, momentum=0.9)(x)
        x = nn.relu(x).reshape(x.shape[0], -1)
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, x.shape[1:]))(keys)
        return nn.Dense(4)(jnp.where(kept, x / 0.8, 0))


def cnn_params() -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    variables = CNN(None).init(jax.random.key(1), jnp.ones((2, 6, 6, 1)), keys)
    return {"params": variables["params"], "batch_stats": variables["batch_stats"]}


def cnn_loss(variables: Any, batch: Any, keys: Any, axis: str | None = "data") -> Any:
    logits, new = CNN(axis).apply(variables, batch["x"], keys, mutable=["batch_stats"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]), new


def cnn_rows(rng: np.random.Generator, rows: int) -> Any:
    y = rng.integers(0, 4, rows)
    x = rng.normal(size=(rows, 6, 6, 1)) + y[:, None, None, None] / 2
    return {"x": x.astype(np.float32), "y": y}


CNN_PROBLEM = Problem(
    cnn_params,
    cnn_loss,
    cnn_rows,
    {"mutable": "batch_stats", "rng": "example", "seed": 3},
    sizes=(64,),
)


def cnn_keys(number: Any, rows: int) -> Any:
    """One key per example, as `rng="example"` promises them."""
    key = jax.random.fold_in(jax.random.key(3), number)
    return jax.vmap(lambda k: jax.random.fold_in(key, k))(jnp.arange(rows))


# --- an NNX transformer with masked tokens


class Transformer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(11, 16, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, 16, use_bias=False, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)
        self.out = nnx.Linear(16, 11, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        x = x + self.attend(x, mask=nnx.make_causal_mask(tokens))
        x = x + self.down(nnx.gelu(self.up(self.norm(x))))
        return self.out(x)


def token_loss(model: Any, batch: Any) -> Any:
    logits = model(batch["tokens"][:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"][:, 1:])
    return losses, batch["mask"][:, 1:]


def token_rows(rng: np.random.Generator, rows: int) -> Any:
    tokens = rng.integers(0, 11, (rows, 9)).cumsum(1) % 11
    lengths = rng.integers(2, 10, rows)
    return {"tokens": tokens, "mask": np.arange(9) < lengths[:, None]}


TOKENS = Problem(lambda: Transformer(nnx.Rngs(0)), token_loss, token_rows, {}, sizes=(13,))


def one_device_tokens(optimizer: Any) -> tuple[Any, list[Any]]:
    """The transformer, trained by hand with NNX's own transformations."""
    model = TOKENS.params()
    own = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def update(model: Any, own: Any, batch: Any) -> Any:
        def mean(model: Any) -> Any:
            losses, weights = token_loss(model, batch)
            return jnp.sum(losses * weights) / jnp.sum(weights)

        value, grads = nnx.value_and_grad(mean)(model)
        own.update(model, grads)
        return value

    losses = [update(model, own, batch) for batch in TOKENS.batches()]
    return jax.device_get((nnx.to_pure_dict(nnx.state(model)), losses))

"""What a step costs before it computes anything: many small layers, on one device.

    python benchmarks/train_small.py            # from the root of the repository

A hundred arrays of params and the optimizer's two hundred are handed over and taken back, and the
numbers are next to nothing. On an accelerator this happens while the step before still computes;
it shows where steps are short. Steps are interleaved; the shortest of each is printed, which other
work on the machine changes least.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import optax
import report
from flax import nnx

import shardwise as sw

LAYERS, WIDTH, ROWS = 50, 8, 16
BATCH = {"x": jnp.ones((ROWS, WIDTH)), "y": jnp.ones((ROWS, WIDTH))}


class Model(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def losses(model: Any, batch: Any) -> jax.Array:
    return jnp.mean((model(batch["x"]) - batch["y"]) ** 2, axis=-1)


def plain_losses(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for weight, bias in params:
        x = jnp.tanh(x @ weight + bias)
    return jnp.mean((x - batch["y"]) ** 2, axis=-1)


def plain_params() -> Any:
    return [(jnp.eye(WIDTH), jnp.zeros(WIDTH)) for _ in range(LAYERS)]


def by_hand() -> Callable[[], Any]:
    tx = optax.adamw(1e-3)
    params = plain_params()
    carry = params, tx.init(params)

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        loss, grads = jax.value_and_grad(lambda p: plain_losses(p, batch).mean())(params)
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    compiled = jax.jit(step, donate_argnums=0)

    def run() -> Any:
        nonlocal carry
        carry, loss = compiled(carry, BATCH)
        return carry, loss

    return run


def ours() -> Callable[[], Any]:
    step = sw.data_parallel(plain_losses, optax.adamw(1e-3))
    state = step.init(plain_params())

    def run() -> Any:
        nonlocal state
        state, metrics = step(state, BATCH)
        return state, metrics

    return run


def _objects() -> tuple[Model, Any]:
    model = Model()
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


def by_hand_nnx() -> Callable[[], Any]:
    model, optimizer = _objects()

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda m: losses(m, batch).mean())(model)
        optimizer.update(model, grads)
        return loss

    return lambda: (step(model, optimizer, BATCH), model.layers[0].kernel[...])


def ours_nnx() -> Callable[[], Any]:
    model, optimizer = _objects()
    step = sw.nnx.data_parallel(losses)
    return lambda: (step(model, optimizer, BATCH), model.layers[0].kernel[...])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="steps timed per form")
    rounds = parser.parse_args().rounds
    forms = {
        "jit by hand": by_hand(),
        "shardwise": ours(),
        "nnx.jit by hand": by_hand_nnx(),
        "shardwise, NNX": ours_nnx(),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds + 3):
        for name, run in forms.items():
            began = time.perf_counter()
            jax.block_until_ready(run())
            if number > 2:
                times[name].append(time.perf_counter() - began)
    found = {name: min(t) for name, t in times.items()}
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    base = {"shardwise": "jit by hand", "shardwise, NNX": "nnx.jit by hand"}
    rows = [
        [name, report.milliseconds(took), report.ratio(took / found[base.get(name, name)])]
        for name, took in found.items()
    ]
    print(report.table([f"{LAYERS} small layers", "time", "/ by hand"], rows) + "\n")
    plain = found["shardwise"] / found["jit by hand"]
    objects = found["shardwise, NNX"] / found["nnx.jit by hand"]
    report.conclude(
        [
            report.Target("a step of 300 small arrays / jit", plain, 1.1),
            report.Target("the same in NNX / nnx.jit", objects, 1.0),
        ]
    )


if __name__ == "__main__":
    main()

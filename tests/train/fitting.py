"""A training that kills itself.

It is run in a process of its own by the tests of `fit`, which run it again, to the end, and
compare the params it prints with those of an unbroken run.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import shardwise as sw

STEPS, EVERY = 23, 5
TRUE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


class Rows:
    """Twelve different batches, from the start each time."""

    def __iter__(self) -> Any:
        rng = np.random.default_rng(0)
        for _ in range(12):
            x = rng.normal(size=(10, 4)).astype(np.float32)
            yield {"x": x, "y": x @ TRUE}


class Counted:
    """An iterator that remembers its place, as Grain's do, and counts what it was asked for."""

    def __init__(self, as_bytes: bool = False) -> None:
        self.place, self.asked, self.as_bytes = 0, 0, as_bytes

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        self.asked += 1
        x = np.random.default_rng(self.place).normal(size=(10, 4)).astype(np.float32)
        self.place += 1
        return {"x": x, "y": x @ TRUE}

    def get_state(self) -> Any:
        return str(self.place).encode() if self.as_bytes else {"place": self.place}

    def set_state(self, state: Any) -> None:
        self.place = int(state if self.as_bytes else state["place"])


class Deadly:
    """Batches, until the process is killed."""

    def __init__(self, die_at: int) -> None:
        self.die_at = die_at

    def __iter__(self) -> Any:
        for number, batch in enumerate(batch for _ in range(9) for batch in Rows()):
            if number == self.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


def losses(model: Any, batch: Any, keys: Any) -> Any:
    """Per-row losses with noise, so that the keys of a resumed run matter too."""
    noise = jax.vmap(lambda key: jax.random.normal(key))(keys)
    y = model(batch["x"]) if callable(model) else batch["x"] @ model["w"]
    return ((y - batch["y"] + 0.1 * noise[:, None]) ** 2).mean(-1)


def begin(kind: str) -> tuple[Any, Any]:
    """A step and a state to begin with."""
    if kind == "pure":
        step = sw.data_parallel(losses, optax.adam(0.05), rng="example", mesh=sw.mesh(data=3))
        return step, step.init({"w": np.zeros((4, 3), np.float32)})
    model = nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.2, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)
    return sw.nnx.data_parallel(losses, rng="example"), (model, optimizer)


def digest(kind: str, state: Any) -> str:
    """All bits of the trained arrays."""
    arrays = state if kind == "pure" else nnx.state(state, nnx.Not(nnx.RngKey))
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(arrays)).hex()


def main(kind: str, folder: str, die_at: int, steps: int) -> None:
    step, state = begin(kind)
    state = sw.fit(
        step,
        state,
        Deadly(die_at),
        steps=steps,
        every=EVERY,
        checkpoint=folder,
        progress=False,
    )
    print(digest(kind, state))

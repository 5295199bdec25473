"""Measure the cost of checksums: `fit` and `evaluate` with and without them.

    python benchmarks/at_rest.py            # from the root of the repository

A training that stores its state every few steps, and an evaluation of many short steps with a
journal. The same calls run with the checksums replaced by a constant. Runs are interleaved, the
fastest of each is printed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import report

import shardwise as sw

WIDTH, ROWS, STEPS, EVERY, ROUNDS = 1536, 256, 20, 10, 3
EXAMPLES = 400_000
WHERE = (
    "shardwise._runtime.train.fit.checkpoint.checksum",
    "shardwise._runtime.evaluate.journal.journal.checksum",
)


def main() -> None:
    step = sw.data_parallel(loss, optax.adam(1e-3))
    runs = {"fit, a state of {} every {} steps": train(step), "evaluate, a journal": evaluate}
    size = report.megabytes(3 * 4 * 4 * WIDTH**2)
    found = []
    for name, run in runs.items():
        run()  # compiles
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS if run is not evaluate else 3 * ROUNDS):
            for checked in (True, False):
                with as_it_is() if checked else without_sums():
                    times[checked].append(timed(run))
        value = min(times[True]) / min(times[False])
        found.append(report.Target(name.format(size, EVERY), value, 1.02))
    report.conclude(found)
    print(report.machine(jax.devices()[0].device_kind, jax.__version__))


def loss(params: list[jax.Array], batch: jax.Array) -> jax.Array:
    x = batch
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2, axis=-1)


def train(step: sw.Step) -> Callable[[], None]:
    batch = np.ones((ROWS, WIDTH), np.float32)
    params = [0.01 * jnp.ones((WIDTH, WIDTH)) for _ in range(4)]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            sw.fit(
                step,
                step.init(params),
                [batch],
                steps=STEPS,
                every=EVERY,
                checkpoint=folder,
                progress=False,
            )

    return run


def evaluate() -> None:
    data = np.arange(EXAMPLES, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        sw.evaluate(itself, None, data, batch=100, journal=f"{folder}/journal", progress=False)


def itself(_: None, x: jax.Array) -> jax.Array:
    return x


def timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


@contextmanager
def as_it_is() -> Iterator[None]:
    yield


@contextmanager
def without_sums() -> Iterator[None]:
    """The same work with a constant for every checksum."""
    with mock.patch(WHERE[0], return_value=0), mock.patch(WHERE[1], return_value=0):
        yield


if __name__ == "__main__":
    main()

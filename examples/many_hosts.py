"""One script on a laptop, on several processes, and on a cluster: it trains, evaluates, restarts.

    python examples/many_hosts.py runs/a
    shardwise launch --processes 2 --devices 2 --restarts 3 examples/many_hosts.py runs/a
    srun python examples/many_hosts.py runs/a          # in a Slurm job
    mpirun -n 4 python examples/many_hosts.py runs/a   # with Open MPI

Kill any process while it trains: under `launch` all start again from the last checkpoint, and the
final parameters are those of a run without a kill, bit by bit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import shardwise as sw

me = sw.connect()  # before anything that starts JAX's devices

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402

ROWS, BATCH, STEPS = 4096, 64, 60


def loss(params: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """Squared errors of a small network, one for each row."""
    hidden = jnp.tanh(batch["x"] @ params["in"])
    return (hidden @ params["out"] - batch["y"]) ** 2


class OwnRows:
    """The part of every batch that this process reads; it can be iterated again."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        self._data = data

    def __iter__(self):
        for start in range(0, ROWS, BATCH):
            own = np.array_split(np.arange(start, start + BATCH), me.processes)[me.process]
            yield {name: array[own] for name, array in self._data.items()}


def make_data(rows: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(1))}


def make_params() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0))  # the same seed everywhere
    return {"in": jax.random.normal(keys[0], (8, 32)) / 3, "out": jnp.zeros(32)}


@sw.case(mesh={"data": [1, 2, 4, 8]})
def training_step():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    step = sw.data_parallel(loss, optax.adam(0.01))
    return step, (step.init(make_params()), make_data(16))


def main(folder: Path) -> None:
    data, params = make_data(ROWS), make_params()
    step = sw.data_parallel(loss, optax.adam(0.01), feed="own")
    state = sw.fit(
        step,
        step.init(params),
        OwnRows(data),
        steps=STEPS,
        checkpoint=folder,
        every=20,
        evaluate=lambda state: sw.evaluate(loss, state.params, data, batch=256),
        progress=False,
    )
    result = sw.evaluate(loss, state.params, data, batch=256)
    if me.first:
        print(f"{result['mean']:.4f} after {int(state.step)} steps, on {result.devices} devices")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Follow a training elsewhere: TensorBoard's event files, Weights & Biases, a function of yours.

    pip install 'shardwise[tensorboard]'
    python examples/follow_training.py --folder run --steps 2000
    tensorboard --logdir run/events

`sw.fit` gives every row of its log to `callbacks`: a dict of `step`, `seconds`, `loss`, the other
metrics of the step, and `name/metric` where it was evaluated.
"""

import argparse
from pathlib import Path

import numpy as np
import optax

import shardwise as sw


def to_tensorboard(folder):
    """A callback that writes event files, with the writer that TensorBoard itself has."""
    from tensorboard.summary import Writer

    writer = Writer(str(folder))

    def write(row):
        for name, value in row.items():
            if name not in ("step", "seconds"):
                writer.add_scalar(name, float(value), row["step"])
        writer.flush()

    return write


def to_wandb(run):
    """A callback for `run = wandb.init(...)`; steps that come again after a crash are dropped."""
    return lambda row: run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])


class Worst:
    """A callback of one's own: which step had the greatest loss."""

    def __init__(self):
        self.step, self.loss = 0, -np.inf

    def __call__(self, row):
        if row["loss"] > self.loss:
            self.step, self.loss = row["step"], row["loss"]


class Batches:
    """Noisy points of a plane, the same ones each time they are asked for."""

    def __iter__(self):
        rng = np.random.default_rng(0)
        while True:
            x = rng.normal(size=(32, 4)).astype(np.float32)
            yield {"x": x, "y": x.sum(-1) + 0.1 * rng.normal(size=32).astype(np.float32)}


def loss(params, batch):
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


def train(folder, steps, callbacks, progress=None):
    """Run a small training in a folder; return the params."""
    step = sw.data_parallel(loss, optax.adam(1e-2), norms=True)
    held_out = next(iter(Batches()))
    state = sw.fit(
        step,
        step.init({"w": np.zeros(4, np.float32), "b": np.float32(0)}),
        Batches(),
        steps=steps,
        checkpoint=folder,
        evaluate={"test": lambda state: sw.evaluate(loss, state.params, held_out, progress=False)},
        callbacks=callbacks,
        progress=progress,
    )
    return state.params


@sw.case(mesh={"data": [1, 2, 4, 8]})
def training_step():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    step = sw.data_parallel(loss, optax.adam(1e-2), norms=True)
    params = {"w": np.ones(4, np.float32), "b": np.float32(0)}
    return step, (step.init(params), next(iter(Batches())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("run"))
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    worst = Worst()
    train(options.folder, options.steps, [to_tensorboard(options.folder / "events"), worst])
    print(f"the greatest loss was {worst.loss:.4g}, at step {worst.step}")


if __name__ == "__main__":
    main()

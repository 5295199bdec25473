"""Training: handwritten digits on eight virtual devices, to the end and through interruptions.

    python examples/train_digits.py [--folder digits] [--steps 400] [--real]

A small convolutional network with batch normalization learns the digits of scikit-learn. The mesh
has eight devices that need not exist: the step accumulates over them on this one, with the batch
statistics of the whole batch. With `--real` JAX is started with eight CPU devices and the same
step runs on those. Interrupt it and run it again with the same folder: it goes on where it was.
"""

import argparse
import os
import tempfile
from pathlib import Path

import shardwise as sw  # imports no JAX yet: `--real` sets its flags first

DEVICES = 8


def split_digits():
    """Return images and labels, a fifth of them for testing."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out = len(labels) // 5
    parts = order[held_out:], order[:held_out]
    return tuple({"image": images[part], "label": labels[part]} for part in parts)


class Batches:
    """Shuffled batches, epoch after epoch, the same ones each time they are asked for."""

    def __init__(self, data, rows):
        self.data, self.rows = data, rows

    def __iter__(self):
        import numpy as np

        rng = np.random.default_rng(1)
        count = len(self.data["label"])
        while True:
            order = rng.permutation(count)
            for start in range(0, count - self.rows + 1, self.rows):
                part = order[start : start + self.rows]
                yield {name: leaf[part] for name, leaf in self.data.items()}


def make_model():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Conv(1, 16, (3, 3), use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(16, axis_name="data", momentum=0.9, rngs=rngs)
            self.second = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.out = nnx.Linear(32 * 4 * 4, 10, rngs=rngs)

        def __call__(self, images):
            x = nnx.relu(self.norm(self.first(images)))
            x = nnx.relu(self.second(x))
            return self.out(self.drop(x.reshape(x.shape[0], -1)))

    return Net(nnx.Rngs(0))


def losses(model, batch):
    """One loss per image, and whether it was right."""
    import optax

    logits = model(batch["image"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return loss, {"accuracy": logits.argmax(-1) == batch["label"]}


def metrics(model, batch):
    """The same, as `sw.evaluate` wants it."""
    loss, more = losses(model, batch)
    return {"loss": loss, **more}


def train(folder, steps, mesh, progress=None):
    """Train in a folder of checkpoints; return the last evaluation on the test digits."""
    import optax
    from flax import nnx

    train_set, test_set = split_digits()
    model = make_model()
    schedule = optax.cosine_decay_schedule(3e-3, steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    step = sw.nnx.data_parallel(losses, mesh=mesh, has_aux=True)

    def test(state):
        return sw.evaluate(metrics, state[0], test_set, batch=64, progress=False)

    state = sw.fit(
        step,
        (model, optimizer),
        Batches(train_set, 128),
        steps=steps,
        checkpoint=folder,
        every=100,
        evaluate={"test": test},
        progress=progress,
    )
    return test(state)


@sw.case(mesh={"data": [1, 2, 4]})
def training_step():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    import numpy as np
    import optax
    from flax import nnx

    model = make_model()
    model.drop.deterministic = True  # each device drops others: right, and never the same
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(losses, has_aux=True)
    images = np.random.default_rng(0).random((8, 8, 8, 1), np.float32)
    return step, (model, optimizer, {"image": images, "label": np.arange(8, dtype=np.int32)})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to keep checkpoints, log and curves")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--real", action="store_true", help="eight CPU devices, not virtual ones")
    options = parser.parse_args()
    if options.real:
        flag = f"--xla_force_host_platform_device_count={DEVICES}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"

    mesh = None if options.real else sw.mesh(data=DEVICES)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="digits-"))
    result = train(folder, options.steps, mesh)
    print(result)
    print(f"checkpoints, log.jsonl and curves.png are in {folder}")


if __name__ == "__main__":
    main()

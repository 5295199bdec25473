"""Evaluation: from arrays on disk to numbers, in steps that fit the device.

    python examples/evaluate_npy.py [--rows 200000] [--journal night.db]

Two arrays are written to a temporary folder and mapped, not loaded. A small classifier is evaluated
over them: mean loss, accuracy, and the worst example's loss. Run it with a journal, interrupt it
with Ctrl-C, run it again with the same one: it goes on where it was.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

import shardwise as sw

CLASSES, WIDTH = 10, 64


def write_data(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows).astype(np.int32)
    centers = rng.normal(size=(CLASSES, WIDTH)).astype(np.float32)
    np.save(folder / "x.npy", centers[labels] + rng.normal(size=(rows, WIDTH)).astype(np.float32))
    np.save(folder / "y.npy", labels)


def make_params() -> dict[str, jax.Array]:
    w = jax.random.normal(jax.random.key(0), (WIDTH, CLASSES)) / WIDTH**0.5
    return {"w": w, "b": jnp.zeros(CLASSES)}


def metrics(params, batch):
    """One value per example for each metric; the mean is taken unless it says otherwise."""
    logits = batch["x"] @ params["w"] + params["b"]
    log_likelihood = jax.nn.log_softmax(logits)
    loss = -jnp.take_along_axis(log_likelihood, batch["y"][:, None], axis=1)[:, 0]
    return {
        "loss": loss,
        "accuracy": logits.argmax(-1) == batch["y"],
        "worst": sw.Max(loss),
    }


def split(params, batch, *, mesh):
    """The metrics with the examples split over a mesh."""
    return jax.shard_map(metrics, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))(
        params, batch
    )


@sw.case(mesh={"data": [1, 2, 4, 8]}, reference=metrics)
def metrics_of_parts():
    """What `evaluate` relies on: the values of an example do not depend on the others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, WIDTH)).astype(np.float32)
    return split, (make_params(), {"x": x, "y": np.arange(16, dtype=np.int32) % CLASSES})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--journal", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, args.rows)
        data = {key: np.load(folder / f"{key}.npy", mmap_mode="r") for key in ("x", "y")}
        result = sw.evaluate(metrics, make_params(), data, batch=args.batch, journal=args.journal)
    print(result)


if __name__ == "__main__":
    main()

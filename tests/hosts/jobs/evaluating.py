"""Evaluations of one script on any number of processes; prints every result, bit by bit."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import shardwise as sw

me = sw.connect()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import struct  # noqa: E402

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.standard_normal((1003, 8)).astype(np.float32)
y = rng.integers(0, 5, 1003).astype(np.int32)
x[700] = np.nan
w = rng.standard_normal((8, 5)).astype(np.float32)
found = {}


def note(name, result):
    values = {k: np.asarray(v).tobytes().hex() for k, v in sorted(result.items())}
    bad = {k: [v.count, v.first] for k, v in result.nonfinite.items()}
    found[name] = {"values": values, "count": result.count, "bad": bad}
    if me.first:
        print(f"{name}: {result.count} examples, {result.resumed} of them from the journal")


@struct.dataclass
class Meter:
    """A metric object as CLU has them; merging rounds."""

    total: jax.Array
    count: jax.Array

    def merge(self, other):
        return Meter(self.total + other.total * np.float32(1.0000001), self.count + other.count)

    def compute(self):
        return self.total / self.count


def fn(w, batch, mask):
    logits = batch["x"] @ w
    rows = jnp.where(mask, jnp.tanh(logits).sum(-1), 0)
    kept = mask & jnp.isfinite(rows)
    meter = Meter(jnp.where(kept, rows, 0).sum(), kept.sum())
    return {
        "loss": logits[:, 0] ** 2,
        "hits": sw.Sum(logits.argmax(-1) == batch["y"]),
        "most": sw.Max(batch["y"], batch["y"] < 4),
        "meter": meter,
    }


data = {"x": x, "y": y}
note("arrays", sw.evaluate(fn, w, data, batch=32))
note("journal", sw.evaluate(fn, w, data, batch=16, journal=folder / "run.journal"))


class Rows:
    """A dataset."""

    def __len__(self):
        return len(x)

    def __getitem__(self, k):
        return {"x": x[k], "y": y[k]}


note("dataset", sw.evaluate(fn, w, Rows(), batch=64))
note("chosen", sw.evaluate(lambda w, b: b @ w[:, 0], w, np.nan_to_num(x)))

share = np.array_split(np.arange(len(y)), me.processes)[me.process]
batches = ({"y": y[part]} for part in np.array_split(share, 3))
note("iterable", sw.evaluate(lambda _, b: {"sum": sw.Sum(b["y"]), "most": sw.Max(b["y"])}, None,
                             batches))  # fmt: skip

mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"))
note("mesh", sw.evaluate(fn, w, data, batch=32, mesh=mesh)) if me.processes < 4 else None

# A state that a training has left on all devices of all processes, and one that is split.
everywhere = jax.sharding.NamedSharding(
    jax.make_mesh((jax.device_count(),), ("data",)), jax.sharding.PartitionSpec()
)
placed = jax.make_array_from_callback(w.shape, everywhere, lambda i: w[i])
note("placed", sw.evaluate(fn, placed, data, batch=32))


def refused(words, *args, **options):
    try:
        sw.evaluate(*args, **options)
    except sw.ShardwiseError as error:
        if words in str(error):
            return True
        raise
    return False


if me.processes > 1:
    torn = jax.sharding.NamedSharding(everywhere.mesh, jax.sharding.PartitionSpec("data"))
    split = jax.make_array_from_callback(w.shape, torn, lambda i: w[i])
    assert refused("is split over the processes", fn, split, data)
    assert refused("the content of the state differs", lambda w, b: b @ w[:, 0], w + me.process, x)
    half = jax.sharding.Mesh(np.array(jax.devices()[: jax.device_count() // me.processes]), "data")
    left_out = refused("no device of process", fn, w, data, batch=32, mesh=half)
    assert left_out == (not me.first)  # to the first, the mesh is its own: it runs alone
text = json.dumps(found, sort_keys=True)
print("digest", me.process, hashlib.sha256(text.encode()).hexdigest()[:16])
(folder / f"result-{me.processes}-{me.process}.json").write_text(text)

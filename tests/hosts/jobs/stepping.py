"""Data-parallel steps on any number of processes: each with rows of its own, or the whole batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import shardwise as sw

me = sw.connect()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
SHARES = [5, 8] if me.processes == 2 else [13]  # unequal: padded and masked
x = rng.standard_normal((13, 3)).astype(np.float32)
y = (x @ [1.0, -2.0, 3.0]).astype(np.float32)
start = sum(SHARES[: me.process])
own = {"x": x[start : start + SHARES[me.process]], "y": y[start : start + SHARES[me.process]]}
whole = {"x": x, "y": y}


def loss(params, batch):
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


def noisy(params, batch, keys):
    noise = jax.vmap(lambda k: jax.random.normal(k, ()))(keys)
    return (batch["x"] @ params["w"] + noise - batch["y"]) ** 2


def model_loss(model, batch):
    return (model(batch["x"])[:, 0] - batch["y"]) ** 2


found = {}


def trained(name, step, batch, params, steps=3):
    state = step.init(params)
    for _ in range(steps):
        state, metrics = step(state, batch)
    found[name] = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(state.params)]
    found[name + " loss"] = [float(metrics["loss"]), float(metrics["weight"])]


params = {"w": jnp.zeros(3), "b": jnp.float32(0)}
adam = optax.adam(0.1)
trained("own", sw.data_parallel(loss, adam, feed="own"), own, params)
trained("whole", sw.data_parallel(loss, adam, feed="whole"), whole, params)
trained("keys", sw.data_parallel(noisy, adam, feed="own", rng="example"), own, params)
trained("parts", sw.data_parallel(loss, adam, feed="own", accumulate=2), own, params)

model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
step = sw.nnx.data_parallel(model_loss, feed="own")
for _ in range(3):
    metrics = step(model, optimizer, own)
found["nnx"] = np.asarray(model.kernel[...]).tolist()
found["nnx loss"] = [float(metrics["loss"])]


def refused(words, call):
    try:
        call()
    except sw.ShardwiseError as error:
        if words in str(error):
            return True
        raise
    return False


if me.processes > 1:
    step = sw.data_parallel(loss, adam)
    assert refused("feed='own') for readers", lambda: step(step.init(params), own))
    assert refused("differs between process 0 and process 1",
                   lambda: step.init({**params, "b": jnp.float32(me.process)}))  # fmt: skip
    mean = sw.data_parallel(lambda p, b: loss(p, b).mean(), adam, feed="own")
    state = mean.init(params)
    assert refused("is a scalar, and the batch does not divide evenly", lambda: mean(state, own))
    even = jax.tree.map(lambda leaf: leaf[:4], own)
    mean = sw.data_parallel(lambda p, b: loss(p, b).mean(), adam, feed="own")
    state, _ = mean(mean.init(params), even)
    larger = sw.data_parallel(loss, adam, feed="own")
    state, _ = larger(larger.init(params), even)
    assert refused("up to 4 rows", lambda: larger(state, own))
    devices = np.array(jax.devices()[: jax.device_count() // me.processes])
    mesh = jax.sharding.Mesh(devices, ("data",))
    if not me.first:
        # Process 0's own devices, seen from elsewhere.
        assert refused("no device of process 1", lambda: sw.data_parallel(loss, adam, mesh=mesh))
(folder / f"steps-{me.processes}-{me.process}.json").write_text(json.dumps(found))

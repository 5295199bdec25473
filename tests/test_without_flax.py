"""Without Flax, optax and Orbax: what does not need them works, and what does says so in words.

Each program runs in a process of its own, in which these packages cannot be imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("flax", "optax", "orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""

WORKS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
import shardwise as sw

def loss(params, batch):  # parameters as Haiku has them: a dict of dicts
    return ((batch["x"] @ params["linear"]["w"] + params["linear"]["b"] - batch["y"]) ** 2).mean()

def step(params, batch, *, mesh):
    def body(params, batch):
        params = jax.lax.pcast(params, "data", to="varying")
        return jax.lax.pmean(jax.grad(loss)(params, batch), "data")
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(params, batch)

params = {"linear": {"w": jnp.ones(3), "b": jnp.zeros(())}}
batch = {"x": np.arange(24, dtype=np.float32).reshape(8, 3) / 8, "y": np.ones(8, np.float32)}
got = sw.simulate(step, mesh={"data": 4})(params, batch)
want = jax.grad(loss)(params, batch)
np.testing.assert_allclose(got["linear"]["w"], want["linear"]["w"], rtol=1e-5)
assert sw.check(step, params, batch, mesh={"data": [1, 2, 4]})
assert sw.prove(step, params, batch, mesh={"data": 4})
assert sw.explain(step, params, batch, mesh={"data": 4}).collectives
assert sw.inspect(step, params, batch, mesh={"data": 2}).steps
fn = lambda p, b: (b["x"] @ p["linear"]["w"] - b["y"]) ** 2
assert sw.evaluate(fn, params, batch, batch=3, progress=False).count == 8
assert not {"flax", "optax", "orbax"} & {name.partition(".")[0] for name in sys.modules}
print("works")
"""

SAYS = """
import shardwise as sw

def told(call):
    try:
        call()
    except ImportError as error:
        assert isinstance(error, sw.ShardwiseError), repr(error)
        assert "pip install 'shardwise[flax]'" in str(error), error
        return str(error).split(" needs ")[0]
    raise AssertionError("it was not told")

print(told(lambda: sw.nnx), told(lambda: sw.primitives), sep=", ")
print(told(lambda: sw.data_parallel(lambda p, b: b, object())))
from shardwise._runtime.train.fit.checkpoint import Checkpoints
print(told(lambda: Checkpoints("folder", 3)))
from shardwise._practice.sandbox.host import Sandbox
print(told(lambda: Sandbox().start()))
"""


def run(code: str, folder: Path) -> str:
    found = subprocess.run(
        [sys.executable, "-c", BLOCK + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.once
def test_plain_pytrees_need_no_flax(tmp_path):
    assert run(WORKS, tmp_path) == "works\n"


@pytest.mark.once
def test_what_needs_flax_says_so(tmp_path):
    assert run(SAYS, tmp_path).splitlines() == [
        "shardwise.nnx, shardwise.primitives",
        "sw.data_parallel",
        "sw.fit with checkpoint=",
        "shardwise practice",
    ]
    assert not [*tmp_path.iterdir()]

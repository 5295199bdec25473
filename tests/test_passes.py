"""The passes of the engine: in one list, and none changes what a program gives."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._engine import lower as _lower
from shardwise._engine.lower.passes import PASSES
from shardwise._engine.lower.switches import is_on, without

FOLDER = Path(_lower.__file__).parent
NAMES = [one.name for one in PASSES]
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)
W = np.linspace(0.5, 1.5, 3 * 16, dtype=np.float32).reshape(3, 4, 4)


def step(w: Any, x: Any, *, mesh: Any) -> Any:
    """A gradient through a loop over layers, in each of which the devices sum something."""

    def body(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            def layer(x: Any, own: Any) -> Any:
                return jnp.tanh(x @ own), lax.psum(x.sum(), "data")

            x_, sums = lax.scan(layer, x, w)
            return lax.pmean((x_**2).mean(), "data") + 0.01 * sums.mean()

        return jax.value_and_grad(loss)(w)

    split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    return split(w, x)


def run(at_once: int = 1) -> list[np.ndarray]:
    simulated = sw.simulate(step, mesh=sw.mesh(data=4), at_once=at_once)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(simulated(W, X))]


def text() -> str:
    simulated = sw.simulate(step, mesh=sw.mesh(data=4), at_once=1)
    return jax.jit(lambda w, x: simulated(w, x)).lower(W, X).as_text()


def test_each_pass_says_why_and_where():
    assert len(NAMES) == len(set(NAMES))
    benchmarks = {file.stem for file in (Path(__file__).parents[1] / "benchmarks").glob("*.py")}
    for one in PASSES:
        assert one.reason
        assert one.benchmark.split()[0] in benchmarks


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_that_is_off_changes_no_result(name, at_once):
    with without(name):
        found = run(at_once)
    for one, other in zip(found, run(at_once), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


def test_a_switch_is_heard():
    with without("sum_after_loops", "split_loops", "without_loop"):
        assert not is_on("sum_after_loops")
        found = text()
    assert is_on("sum_after_loops")
    assert found != text()


def test_every_switch_is_that_of_a_pass():
    """A name that is misspelt where it is asked for would never be off."""
    calls = [
        node.args[0].value
        for file in FOLDER.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "is_on"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert sorted(calls) == sorted(one.name for one in PASSES if one.run is None)

"""Gradients and the state of an optimizer are named after the leaf that they become."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._analysis.inspect.leaves import common_key

PARAMS = {"bias": np.zeros(3, np.float32), "weight": np.ones((2, 3), np.float32)}
X = np.ones((4, 2), np.float32)


def learns(params, moments, x, *, mesh, clip=False):
    def body(params, moments, x):
        def loss(params):
            return lax.pmean(jnp.mean((x @ params["weight"] + params["bias"]) ** 2), "data")

        gradient = jax.grad(loss)(params)
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
            gradient = jax.tree.map(lambda g: g / norm, gradient)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

    specs = P(), P(), P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(params, moments, x)


def inspected(clip=False):
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    return sw.inspect(
        lambda *args, mesh: learns(*args, mesh=mesh, clip=clip),
        PARAMS, zeros, X, mesh=sw.mesh(data=2), progress=False,
    )  # fmt: skip


def test_of_gradients_moments_and_results():
    steps = inspected().steps
    titles = [step.title for step in steps]
    assert [t for t in titles if t.startswith("gradient")] == [
        "gradient ['bias'] = grad (gradient)",
        "gradient ['weight'] = grad (gradient)",
    ]
    assert "moments ['bias'] = add" in titles
    assert "return ['weight'] = sub" in titles
    assert [step.leaf for step in steps if step.kind == "result"] == [
        "result[0]['bias']",
        "result[0]['weight']",
        "result[1]['bias']",
        "result[1]['weight']",
    ]


def test_what_ends_up_in_all_leaves_has_none():
    titles = [step.title for step in inspected(clip=True).steps]
    assert "gradient = grad (gradient)" in titles
    assert "moments ['bias'] = add" in titles


def test_one_result_is_the_whole():
    def total(x, *, mesh):
        body = lambda x: lax.psum(x.sum(), "data")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    steps = sw.inspect(total, X, mesh=sw.mesh(data=2), progress=False).steps
    assert steps[-1].title == "the whole, as out_specs put it together"


@pytest.mark.parametrize(
    ("paths", "key"),
    [
        (["result[0]['w']", "result[1][0].mu['w']"], "['w']"),
        (["result[0]['w']", "result[1][0].mu['v']"], ""),
        (["result.params.w", "result.mu.w"], "w"),
        (["result[0]['a']['w']", "result[1]['a']['w']"], "['a']['w']"),
        (["result[0]['w']"], "result[0]['w']"),
    ],
)
def test_what_paths_share(paths, key):
    assert common_key(paths) == key


def test_a_step_on_a_virtual_mesh_of_its_own_is_followed_inside():
    """Without `mesh=`: the simulated program is read through, as `explain` does."""
    step = sw.data_parallel(
        lambda params, batch: (batch @ params["weight"] + params["bias"]).sum(-1) ** 2,
        optax.sgd(0.1), mesh=sw.mesh(data=2),
    )  # fmt: skip
    found = sw.inspect(step, step.init(PARAMS), X, progress=False)
    assert found.mesh == {"data": 2}
    titles = [step.title for step in found.steps]
    assert any("['weight']" in title for title in titles), titles
    assert not any("simulate" in title for title in titles)

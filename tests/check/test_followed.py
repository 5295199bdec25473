"""A training step in the wrong states that people leave it in while they follow advice.

Each gets a fix that was proved, and the fixed file is proved again, on meshes it was not fixed for.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P

import shardwise as sw

RIGHT = """
import jax
import jax.numpy as jnp
from jax import P

SPECS = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(p, x):
    h = jnp.tanh(x @ p["w1"] + p["b1"])
    y = jax.lax.psum(h @ p["w2"], "model")
    return y + p["b2"]


def loss(p, x, y):
    total = jax.lax.psum(jnp.sum((mlp(p, x) - y) ** 2), "data")
    return total / jax.lax.psum(len(x), "data")


def step(params, moments, x, y, *, mesh):
    def body(p, x, y):
        return jax.grad(loss)(p, x, y)

    specs = {"in_specs": (SPECS, P("data"), P("data")), "out_specs": SPECS}
    gradients = jax.shard_map(body, mesh=mesh, **specs)(params, x, y)
    update = lambda m, g: 0.9 * m + (1 - 0.9) * g
    moments = jax.tree.map(update, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments
"""

UNCHECKED = ('"out_specs": SPECS}', '"out_specs": SPECS, "check_vma": False}')
GRADIENTS = "return jax.grad(loss)(p, x, y)"
PRODUCT = 'jax.lax.psum(h @ p["w2"], "model")', 'h @ p["w2"]'

WRONG = {
    "unchecked": [UNCHECKED],
    "unchecked-and-summed": [
        UNCHECKED,
        (GRADIENTS, 'return jax.lax.psum(jax.grad(loss)(p, x, y), "data")'),
    ],
    "unchecked-and-averaged-over-all": [
        UNCHECKED,
        (GRADIENTS, 'return jax.lax.pmean(jax.grad(loss)(p, x, y), ("data", "model"))'),
    ],
    "not-summed": [UNCHECKED, PRODUCT],
    "bias-and-target-summed": [
        UNCHECKED,
        PRODUCT,
        ("(mlp(p, x) - y) ** 2", 'jax.lax.psum(mlp(p, x) - y, "model") ** 2'),
    ],
    "summed-twice": [("return total /", 'total = jax.lax.psum(total, "data")\n    return total /')],
}


def load(file, name):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def arguments():
    rng = np.random.default_rng(3)
    shapes = {"w1": (4, 8), "b1": (8,), "w2": (8, 4), "b2": (4,)}
    params, moments = (
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(2)
    )
    x, y = rng.normal(size=(2, 16, 4)).astype(np.float32)
    return params, moments, x, y


@pytest.mark.parametrize("name", WRONG)
def test_a_step_in_a_wrong_state_gets_a_fix(name, tmp_path, monkeypatch):
    text = RIGHT
    for before, after in WRONG[name]:
        assert before in text
        text = text.replace(before, after)
    file = tmp_path / f"followed_{name.replace('-', '_')}.py"
    file.write_text(text)
    monkeypatch.setitem(sys.modules, file.stem, None)
    step, args = load(file, file.stem).step, arguments()
    verdict = sw.check(step, *args, mesh={"data": [1, 2], "model": [1, 2]})
    assert not verdict.ok
    first = verdict.findings[0]
    assert first.fix is not None, str(verdict)
    assert first.fix.verified == "proved"
    file.write_text(first.fix.after)
    fixed = load(file, file.stem).step
    for data, model in itertools.product((1, 4), repeat=2):
        assert sw.prove(fixed, *args, mesh=sw.mesh(data=data, model=model)).ok, first.fix.diff


def fsdp(loss_of):
    """A gradient of parameters that are split over the devices and gathered for the loss."""

    def program(w, x, y, *, mesh):
        specs = {"in_specs": P("data"), "out_specs": P("data")}
        return jax.shard_map(lambda *shards: loss_of(*shards), mesh=mesh, **specs)(w, x, y)

    return program


def of_a_function(w, x, y):
    def loss(w):
        whole = jax.lax.all_gather(w, "data", tiled=True)
        return jnp.mean((x @ whole - y) ** 2)

    return jax.grad(loss)(w)


def with_auxiliary_results(w, x, y):
    def loss(w):
        error = x @ jax.lax.all_gather(w, "data", tiled=True) - y
        return jnp.mean(error**2), error.shape

    gradient, _ = jax.grad(loss, has_aux=True)(w)
    return gradient


def of_a_lambda(w, x, y):
    gather = functools.partial(jax.lax.all_gather, axis_name="data", tiled=True)
    return jax.grad(lambda w: jnp.mean((x @ gather(w) - y) ** 2))(w)


@pytest.mark.parametrize("body", [of_a_function, with_auxiliary_results, of_a_lambda])
def test_a_loss_is_averaged_where_it_is_differentiated(body):
    rng = np.random.default_rng(4)
    w, x, y = (rng.normal(size=s).astype(np.float32) for s in ((8, 2), (16, 8), (16, 2)))
    verdict = sw.check(fsdp(body), w, x, y, mesh={"data": [1, 2, 4]})
    (finding,) = verdict.findings
    assert finding.code == "SW401"
    assert finding.fix is not None
    assert finding.fix.verified == "proved"
    (line,) = (row for row in finding.fix.diff.splitlines() if row.startswith("+ "))
    assert "jax.lax.pmean(jnp.mean(" in line


def test_keys_and_values_of_a_split_sequence_are_gathered():
    def attention(q, k, v, *, mesh):
        def body(q, k, v):
            scores = jax.nn.softmax(q @ k.T, -1)
            return scores @ v

        specs = {"in_specs": P("data"), "out_specs": P("data")}
        return jax.shard_map(body, mesh=mesh, **specs)(q, k, v)

    q, k, v = np.random.default_rng(5).normal(size=(3, 8, 4)).astype(np.float32)
    verdict = sw.check(attention, q, k, v, mesh={"data": [1, 2, 4]})
    fix = verdict.findings[0].fix
    assert fix is not None
    assert fix.verified == "proved"
    assert 'q @ jax.lax.all_gather(k, "data", tiled=True).T' in fix.diff
    assert 'scores @ jax.lax.all_gather(v, "data", tiled=True)' in fix.diff

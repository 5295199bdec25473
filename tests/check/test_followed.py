"""A training step in the wrong states that people leave it in while they follow advice.

Each gets a fix that was proved, and the fixed file is proved again, on meshes it was not fixed for.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np
import pytest

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

"""Reports of all kinds, for the tests of the page and of the figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import P

import shardwise as sw

from ..test_examples import load
from .support import shaped

transformer_2d = load("transformer_2d")

HOSTILE = "<script>window.hacked=1</script>\"'&"
SOURCE = """
import jax
from jax import P

def program(tree, *, mesh):
    def body(tree):  # </pre></script><script>window.hacked=1</script><img src=x onerror=hacked=1>
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, AXIS), tree)

    return jax.shard_map(body, mesh=mesh, in_specs=P(AXIS), out_specs=P())(tree)
"""


def nested(x, w, *, mesh):
    """Loops within loops, branches and a while, over three axes."""

    def body(x, w):
        def inner(c, w):
            return jnp.tanh(jax.lax.psum(c @ w, "model")), None

        def outer(c, _):
            c, _ = jax.lax.scan(inner, c, w)
            both, one = ("pipe", "data"), [(0, 1), (1, 0)]
            branches = (
                lambda c: jax.lax.pmean(c, both),
                lambda c: jax.lax.ppermute(c, "pipe", one),
            )
            return jax.lax.cond(c.sum() > 0, *branches, c), None

        y, _ = jax.lax.scan(outer, x, None, length=5)
        y = jax.lax.while_loop(
            lambda c: c.sum() < 5, lambda c: c + jax.lax.pmax(c.sum(), "data"), y
        )
        return jax.lax.pmean((y**2).sum(), ("pipe", "data"))

    specs = (P(("pipe", "data"), None), P(None, "model", None))
    sharded = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return sharded(x, w)


def alone(x, *, mesh):
    return jax.shard_map(jnp.tanh, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def make_reports(folder: Path) -> dict[str, sw.Report]:
    """Reports of all kinds: on two axes with hardware, nested, hostile, alone, huge."""
    block = transformer_2d.example_args()
    big = jax.eval_shape(lambda: transformer_2d.example_args(examples=1024, heads=64, hidden=64))
    file = folder / "<script>window.hacked=1<i>.py"
    file.write_text(SOURCE)
    scope: dict[str, Any] = {"AXIS": HOSTILE}
    exec(compile(SOURCE, str(file), "exec"), scope)
    hostile = scope["program"]
    hostile.__name__ = HOSTILE
    tree = {f"{HOSTILE}{i}": shaped(8, 4) for i in range(9)}
    on = sw.explain
    x, w = shaped(64, 128), shaped(3, 512, 128)
    return {
        "block": on(transformer_2d.step, *block, mesh=sw.mesh(data=4, model=2), hardware="tpu-v5e"),
        "nested": on(nested, x, w, mesh=sw.mesh(pipe=2, data=4, model=4), hardware="h200-node"),
        "hostile": on(hostile, tree, mesh=sw.mesh(**{HOSTILE: 4}), hardware="h100-node"),
        "alone": on(alone, shaped(64), mesh=sw.mesh(data=4)),
        "huge": on(transformer_2d.step, *big, mesh=sw.mesh(data=1024, model=64)),
    }


KINDS = ("block", "nested", "hostile", "alone", "huge")


def numbers_of(data: Any) -> Iterator[float]:
    """Every number of plain data."""
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from numbers_of(inner)
    elif isinstance(data, int | float):
        yield float(data)

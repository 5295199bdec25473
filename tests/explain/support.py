"""What the tests of explain share: small sharded programs, traced on virtual meshes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import P

import shardwise as sw

ROWS = P("data")


def spmd(body: Any, in_specs: Any = ROWS, out_specs: Any = ROWS, **options: Any) -> Any:
    """A function of arrays and a mesh whose devices each run `body`."""

    def program(*args: Any, mesh: Any) -> Any:
        sharded = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)
        return sharded(*args)

    return program


def shaped(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def explained(
    body: Any, *args: Any, mesh: Any = None, compile: Any = "auto", **specs: Any
) -> sw.Report:
    """The report of `body`, by default on four devices along `data`."""
    mesh = mesh or sw.mesh(data=4)
    return sw.explain(spmd(body, **specs), *args, mesh=mesh, compile=compile)


def sent(report: sw.Report) -> list[tuple[Any, ...]]:
    """Each collective in short: name, axes, group size, shape, count, bytes sent."""
    return [
        (use.name, "+".join(use.axes), use.group_size, use.shape, use.count, use.bytes_sent)
        for use in report.collectives
    ]

"""Find where a value exceeds the range of its declared dtype."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import Where
from ..._program.liveness import ancestors
from ..lift import Run
from .diagnose import place

LIMIT = 1 << 26
"""At most this many bytes of values are looked at."""


@dataclasses.dataclass(frozen=True)
class Overflow:
    """The first value on the way to a result that exceeds the range of its dtype."""

    where: Where
    dtype: Any
    value: float

    @property
    def wraps(self) -> bool:
        """Whether it wraps around instead of becoming infinite."""
        return jnp.issubdtype(self.dtype, jnp.integer)

    def __str__(self) -> str:
        low, high = _range(self.dtype)
        end = low if self.value < 0 and self.wraps else high
        return f"a value of {self.value:.6g} leaves the range of {self.dtype} ({end:.6g})"


def overflow(run: Run, index: int) -> Overflow | None:
    """Return the first value before a result that exceeds its range; loop bodies are skipped."""
    target = run.body.outs[index]
    candidates, size = [], 0
    for op in ancestors(run.body, target):
        for var in op.outs:
            size += 8 * int(np.prod(var.shape)) if var in run.lifted.unbounded else 0
            if var in run.lifted.unbounded and size <= LIMIT:
                candidates.append((op, var))
    values = run.observe([run.lifted.unbounded[var] for _, var in candidates], lifted=True)
    for (op, var), value in zip(candidates, values, strict=True):
        low, high = _range(var.dtype)
        finite = value.array[np.isfinite(value.array)]
        outside = finite[(finite < low) | (finite > high)]
        if outside.size:
            furthest = outside[np.abs(outside).argmax()]
            signed = jnp.issubdtype(var.dtype, jnp.integer)
            number = float(furthest if signed else abs(furthest))
            return Overflow(place(op, run.body), var.dtype, number)
    return None


def wrapped(run: Run, base: Run, index: int) -> tuple[Overflow, bool] | None:
    """Return where integers wrap around on only one side, and whether that is on the mesh.

    Integers that wrap around on both, as in a hash, are meant to.
    """
    on_mesh, on_one = (_wrap(side, index) for side in (run, base))
    if on_mesh is not None and (on_one is None or on_one.where != on_mesh.where):
        return on_mesh, True
    return (on_one, False) if on_one is not None and on_mesh is None else None


def _wrap(run: Run, index: int) -> Overflow | None:
    first = overflow(run, index)
    return first if first is not None and first.wraps else None


def _range(dtype: Any) -> tuple[float, float]:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    info = jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype)
    return float(info.min), float(info.max)

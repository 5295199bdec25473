"""Find where a value exceeds the range of its declared dtype."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import Where
from .diagnose import place
from .flow import ancestors
from .running import Run

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
        least, most = _range(self.dtype)
        end = least if self.value < 0 and self.wraps else most
        return f"a value of {self.value:.6g} leaves the range of {self.dtype} ({end:.6g})"


def overflow(run: Run, index: int) -> Overflow | None:
    """Return the first value before a result that exceeds its range; loop bodies are skipped."""
    target = run.body.outs[index]
    before, size = [], 0
    for op in ancestors(run.body, target):
        for var in op.outs:
            size += 8 * int(np.prod(var.shape)) if var in run.lifted.unbounded else 0
            if var in run.lifted.unbounded and size <= LIMIT:
                before.append((op, var))
    held = run.observe([run.lifted.unbounded[var] for _, var in before], lifted=True)
    for (op, var), value in zip(before, held, strict=True):
        least, most = _range(var.dtype)
        finite = value.array[np.isfinite(value.array)]
        beyond = finite[(finite < least) | (finite > most)]
        if beyond.size:
            furthest = beyond[np.abs(beyond).argmax()]
            signed = jnp.issubdtype(var.dtype, jnp.integer)
            number = float(furthest if signed else abs(furthest))
            return Overflow(place(op, run.body), var.dtype, number)
    return None


def wrapped(run: Run, base: Run, index: int) -> tuple[Overflow, bool] | None:
    """Return where integers wrap around on only one side, and whether that is on the mesh.

    Integers that wrap around on both, as in a hash, are meant to.
    """
    here, alone = (_wrap(one, index) for one in (run, base))
    if here is not None and (alone is None or alone.where != here.where):
        return here, True
    return (alone, False) if alone is not None and here is None else None


def _wrap(run: Run, index: int) -> Overflow | None:
    found = overflow(run, index)
    return found if found is not None and found.wraps else None


def _range(dtype: Any) -> tuple[float, float]:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    info = jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype)
    return float(info.min), float(info.max)

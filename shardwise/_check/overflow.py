"""Where a value leaves the range of its declared dtype."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._program import Where
from .diagnose import place
from .flow import ancestors
from .running import Run

LIMIT = 1 << 26
"""How many bytes of values are looked at, at most."""


@dataclasses.dataclass(frozen=True)
class Overflow:
    """The first value on the way to a result that is beyond the range of its dtype."""

    where: Where
    dtype: Any
    value: float

    def __str__(self) -> str:
        return f"a value of {self.value:.4g} leaves the range of {self.dtype} ({_end(self):.4g})"


def overflow(run: Run, index: int) -> Overflow | None:
    """Return the first value on the way to a result that leaves its range; loops are left out."""
    target = run.body.outs[index]
    before, size = [], 0
    for op in ancestors(run.body, target):
        for var in op.outs:
            size += 8 * int(np.prod(var.shape)) if var in run.lifted.unbounded else 0
            if var in run.lifted.unbounded and size <= LIMIT:
                before.append((op, var))
    held = run.observe([run.lifted.unbounded[var] for _, var in before], lifted=True)
    for (op, var), value in zip(before, held, strict=True):
        finite = np.abs(value.array[np.isfinite(value.array)])
        most = float(finite.max(initial=0.0))
        if most > float(jnp.finfo(var.dtype).max):
            return Overflow(place(op, run.body), var.dtype, most)
    return None


def _end(found: Overflow) -> float:
    return float(jnp.finfo(found.dtype).max)

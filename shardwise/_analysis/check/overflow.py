"""Find where a value exceeds the range of its declared dtype."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import Body, Where
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

    def __str__(self) -> str:
        end = float(jnp.finfo(self.dtype).max)
        return f"a value of {self.value:.6g} leaves the range of {self.dtype} ({end:.6g})"


def overflow(run: Run, index: int) -> Overflow | None:
    """Return the first value before a result that exceeds its range; loop bodies are skipped."""
    lifted, candidates, size = run.lifted, [], 0
    for op in ancestors(run.body, run.body.outs[index]):
        for var in op.outs:
            size += 8 * int(np.prod(var.shape)) if var in lifted.unbounded else 0
            if var in lifted.unbounded and size <= LIMIT:
                candidates.append((op, var))
    wanted = [lifted.unbounded[var] for _, var in candidates]
    values = run.evaluate(Body(lifted.body.ins, lifted.body.ops, [*wanted]))
    for (op, var), value in zip(candidates, values, strict=True):
        sizes = np.abs(value.array[np.isfinite(value.array)])
        largest = float(sizes.max(initial=0))
        if largest > float(jnp.finfo(var.dtype).max):
            return Overflow(place(op, run.body), var.dtype, largest)
    return None

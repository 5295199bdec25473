"""Errors planted in single elements: how small an error check still sees, wherever it is.

Each right program of the corpus runs on its largest mesh, with its data in float32, bfloat16 and
float16, and through float8. Then one element of one result is made wrong by 0.1, 1 or 10 percent,
and judged as check judges it. A program that was not touched has to pass, on every mesh.

    python -m tests.check.plant [PART OF A NAME ...]     all programs, with a table
"""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.devices import request_devices

SLIPS = (0.001, 0.01, 0.1)
ELEMENTS = 24
"""How many elements of one result are tried, evenly spread."""

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")


@dataclasses.dataclass(frozen=True)
class Planted:
    """One error in one element, and whether it was seen."""

    program: str
    dtype: str
    slip: float
    leaf: str
    at: tuple[int, ...]
    seen: bool


def in_dtype(pair: Any, dtype: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The right program of a pair, and its arguments, in a dtype; through it, if it is float8."""
    import jax
    import jax.numpy as jnp

    def cast(x: Any) -> Any:
        is_float = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.asarray(x, dtype) if is_float else x

    if not dtype.startswith("float8"):
        return pair.right, jax.tree.map(cast, pair.args())

    def through(*args: Any, mesh: Any) -> Any:
        back = [jax.tree.map(lambda x: cast(x).astype(jnp.result_type(x)), arg) for arg in args]
        return pair.right(*back, mesh=mesh)

    return through, pair.args()


def planted(pair: Any, dtype: str) -> Iterator[Planted]:
    """All errors planted in the right program of a pair, and whether each was seen."""
    import numpy as np

    from shardwise._check.judging import judge
    from shardwise._check.wrong import Wrong

    run, base, wanted, limits = _runs(pair, dtype)
    for index, (value, want, limit) in enumerate(zip(run.values, wanted, limits, strict=True)):
        if want.value.dtype.kind != "f":
            continue
        own = value.array.reshape((-1, *want.value.shape))
        flat = np.flatnonzero(own[0])
        for number in flat[:: math.ceil(len(flat) / ELEMENTS) or 1]:
            at = tuple(map(int, np.unravel_index(number, want.value.shape)))
            for slip in SLIPS:
                changed = own.copy()
                changed[(slice(None), *at)] *= 1 + slip
                held = dataclasses.replace(value, array=changed.reshape(value.array.shape))
                one = Wrong(run, base, index, held, want, limit)
                seen = not (one.right or judge(one).right)
                yield Planted(str(pair), dtype, slip, base.paths[index], at, seen)


def _runs(pair: Any, dtype: str) -> tuple[Any, Any, list[Any], list[Any]]:
    from shardwise._check.options import expand
    from shardwise._check.reference import wanted_of
    from shardwise._check.running import Run
    from shardwise._tracing import Tracing

    right, args = in_dtype(pair, dtype)
    *_, mesh = expand(pair.mesh)
    (ones,) = expand(dict.fromkeys(mesh.axis_names, 1))
    base, run = (Run(Tracing(right, one), args) for one in (ones, mesh))
    wanted = wanted_of(None, base, args)
    return run, base, wanted, base.limits([run], None, None, [0.0] * len(wanted))


def share(found: Sequence[Planted], dtype: str, slip: float) -> tuple[int, int]:
    """How many errors of a size were seen, of how many."""
    rows = [one for one in found if (one.dtype, one.slip) == (dtype, slip)]
    return sum(one.seen for one in rows), len(rows)


def main() -> int:
    """Print the table; 1 if an error was missed, or a program that was not touched is faulted."""
    request_devices()
    import shardwise as sw

    from .corpus import pairs

    chosen = [p for p in pairs() if not sys.argv[1:] or any(a in str(p) for a in sys.argv[1:])]
    found: list[Planted] = []
    alarms: collections.Counter[str] = collections.Counter()
    for pair in chosen:
        for dtype in DTYPES:
            right, args = in_dtype(pair, dtype)
            try:
                verdict = sw.check(right, *args, mesh=pair.mesh)
            except Exception as error:  # a program that is written for one dtype
                print(f"{pair} in {dtype}: {type(error).__name__}")
                continue
            if not verdict:
                alarms[dtype] += 1
                print(f"{pair} in {dtype}: {verdict}")
                continue
            rows = list(planted(pair, dtype))
            found += rows
            for one in rows:
                if not one.seen:
                    print(f"missed: {one}")
    print(f"{'error in one element':22}" + "".join(f"{f'{slip:.1%}':>16}" for slip in SLIPS))
    for dtype in DTYPES:
        cells = [share(found, dtype, slip) for slip in SLIPS]
        row = "".join(f"{f'{seen} of {all_}':>16}" for seen, all_ in cells)
        print(f"{dtype:22}{row}   false alarms: {alarms[dtype]}")
    return int(any(not one.seen for one in found) or bool(alarms))


if __name__ == "__main__":
    sys.exit(main())

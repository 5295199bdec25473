"""Errors planted in single elements: how small an error check still sees, wherever it stands.

Each right program of the corpus, with float32 data as it is and with bfloat16 data, runs on its
largest mesh; then one element of one result is made wrong by 0.1, 1 or 10 percent, and judged as
check judges it. A program that was not touched has to pass, on every mesh. An element that is
itself off by more than the planted error, because float32 has lost it (the same program in float64
tells), is counted apart.

    python -m tests.check.plant [PART OF A NAME ...]     all programs, with a table
"""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tests.devices import request_devices

SLIPS = (0.001, 0.01, 0.1)
ELEMENTS = 24
"""How many elements of one result are tried, evenly spread."""


@dataclasses.dataclass(frozen=True)
class Planted:
    """One error in one element, and whether it was seen."""

    program: str
    dtype: str
    slip: float
    leaf: str
    at: tuple[int, ...]
    seen: bool
    lost: bool
    """Whether rounding has made more of the element than the error does."""


def planted(pair: Any, dtype: str) -> Iterator[Planted]:
    """All errors planted in the right program of a pair, and whether each was seen."""
    import numpy as np

    from shardwise._check.judging import judge

    run, base, wanted, limits = _runs(pair, dtype)
    exact = _in_float64(pair, dtype)
    for index, (value, want, limit) in enumerate(zip(run.values, wanted, limits, strict=True)):
        if want.value.dtype.kind not in "fV":  # numpy has no letter of its own for bfloat16
            continue
        own = value.array.reshape((-1, *want.value.shape))
        flat = np.flatnonzero(own[0].astype("float64"))
        for number in flat[:: math.ceil(len(flat) / ELEMENTS) or 1]:
            at = tuple(map(int, np.unravel_index(number, want.value.shape)))
            for slip in SLIPS:
                changed = own.astype("float64")
                changed[(slice(None), *at)] *= 1 + slip
                array = changed.astype(own.dtype).reshape(value.array.shape)
                held = dataclasses.replace(value, array=array)
                seen = not judge(run, base, index, held, want, limit).right
                true = exact[index][at]
                lost = abs(float(want.value[at]) - true) > slip * abs(true)
                yield Planted(str(pair), dtype, slip, base.paths[index], at, seen, lost)


def _runs(pair: Any, dtype: str) -> tuple[Any, Any, list[Any], list[Any]]:
    from shardwise._check.options import expand
    from shardwise._check.running import Run, Wanted
    from shardwise._tracing import Tracing

    args = as_type(pair.args(), dtype)
    *_, mesh = expand(pair.mesh)
    (ones,) = expand(dict.fromkeys(mesh.axis_names, 1))
    base = Run(Tracing(pair.right, ones), args)
    wanted = [Wanted(value) for value in base.results()]
    limits = base.limits((), mesh.size, None, None)
    return Run(Tracing(pair.right, mesh), args), base, wanted, limits


def _in_float64(pair: Any, dtype: str) -> list[Any]:
    """The results on one device as they would be without rounding."""
    import jax
    import numpy as np

    import shardwise as sw

    args = as_type(pair.args(), dtype)
    with jax.enable_x64(True):
        ones = sw.mesh(dict.fromkeys(pair.mesh, 1))
        out = sw.simulate(pair.right, mesh=ones)(*as_type(args, "float64"))
        return [np.asarray(leaf, "float64") for leaf in jax.tree.leaves(out)]


def as_type(args: Any, dtype: str) -> Any:
    """Arguments with all floating-point numbers in another type."""
    import jax
    import jax.numpy as jnp

    def cast(x: Any) -> Any:
        is_float = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.asarray(x, dtype) if is_float else x

    return jax.tree.map(cast, args)


def share(found: Sequence[Planted], dtype: str, slip: float) -> tuple[int, int]:
    """How many errors of a size were seen, of how many that are not lost in rounding."""
    rows = [one for one in found if (one.dtype, one.slip) == (dtype, slip) and not one.lost]
    return sum(one.seen for one in rows), len(rows)


def main() -> int:
    """Print the table; 1 if an error of 1 % in float32 was missed, or an untouched program not."""
    request_devices()
    import shardwise as sw

    from .corpus import pairs

    chosen = [p for p in pairs() if not sys.argv[1:] or any(a in str(p) for a in sys.argv[1:])]
    found: list[Planted] = []
    alarms: collections.Counter[str] = collections.Counter()
    for pair in chosen:
        for dtype in ("float32", "bfloat16"):
            try:
                verdict = sw.check(pair.right, *as_type(pair.args(), dtype), mesh=pair.mesh)
            except Exception as error:
                print(f"{pair} in {dtype}: {type(error).__name__}")
                continue
            if not verdict:
                alarms[dtype] += 1
                print(f"{pair} in {dtype}: {verdict}")
                continue
            rows = list(planted(pair, dtype))
            found += rows
            for one in rows:
                if missed(one):
                    print(f"missed: {one}")
    print(f"{'error in one element':22}" + "".join(f"{f'{slip:.1%}':>16}" for slip in SLIPS))
    for dtype in ("float32", "bfloat16"):
        cells = [share(found, dtype, slip) for slip in SLIPS]
        row = "".join(f"{f'{seen} of {all_}':>16}" for seen, all_ in cells)
        print(f"{dtype:22}{row}   false alarms: {alarms[dtype]}")
    print(f"lost in rounding: {sum(one.lost for one in found)} of {len(found)}")
    return int(any(map(missed, found)) or bool(alarms["float32"]))


def missed(one: Planted) -> bool:
    """Whether this is one that check promises to see."""
    return one.dtype == "float32" and one.slip >= 0.01 and not one.seen and not one.lost


if __name__ == "__main__":
    sys.exit(main())

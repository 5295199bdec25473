"""Errors planted in single elements: how small an error check still sees, wherever it is.

Each right program of the corpus runs on its largest mesh, with its data in float32, bfloat16 and
float16, and through float8. Then one element of one result is made wrong by 0.1, 1 or 10 percent,
and judged as check judges it. A program that was not touched has to pass, on every mesh.

    python -m tests.check.plant [PART OF A NAME ...] [--workers N]     all programs, with a table
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import math
import multiprocessing
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

    from shardwise._analysis.check.judging import judge
    from shardwise._analysis.check.wrong import Wrong

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
    from shardwise._analysis.check.options import expand
    from shardwise._analysis.check.reference import wanted_of
    from shardwise._analysis.check.running import Run
    from shardwise._engine.tracing import Tracing

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


@dataclasses.dataclass(frozen=True)
class Tried:
    """What came of one program in one dtype."""

    name: str
    dtype: str
    rows: tuple[Planted, ...] = ()
    refused: str = ""
    """Why it cannot run in that dtype."""
    alarm: str = ""
    """What check says of the program as it is, if that is not right."""


def tried(name: str, dtype: str) -> Tried:
    """Check one program of the corpus in a dtype, then plant errors in it."""
    request_devices()
    import shardwise as sw

    from .corpus import pairs

    pair = next(one for one in pairs() if str(one) == name)
    right, args = in_dtype(pair, dtype)
    try:
        verdict = sw.check(right, *args, mesh=pair.mesh)
    except Exception as error:  # a program that is written for one dtype
        return Tried(name, dtype, refused=f"{type(error).__name__}: {error}".splitlines()[0])
    if not verdict:
        return Tried(name, dtype, alarm=str(verdict))
    return Tried(name, dtype, tuple(planted(pair, dtype)))


def main() -> int:
    """Print the table; 1 if an error was missed, or a program that was not touched is faulted."""
    parser = argparse.ArgumentParser(description="Errors planted in single elements.")
    parser.add_argument("names", nargs="*", help="parts of the names of programs")
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    request_devices()
    from .corpus import pairs

    names = [str(p) for p in pairs() if not asked.names or any(a in str(p) for a in asked.names)]
    jobs = [(name, dtype) for name in names for dtype in DTYPES]
    context = multiprocessing.get_context("spawn")
    alarms: collections.Counter[str] = collections.Counter()
    found: list[Planted] = []
    # A worker is replaced now and then: compiled programs are never freed.
    with concurrent.futures.ProcessPoolExecutor(
        asked.workers, context, max_tasks_per_child=24
    ) as pool:
        waiting = [pool.submit(tried, *job) for job in jobs]
        for number, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            one = future.result()
            found += one.rows
            alarms[one.dtype] += bool(one.alarm)
            for said in filter(None, (one.refused, one.alarm)):
                print(f"{one.name} in {one.dtype}: {said}", flush=True)
            for row in one.rows:
                if not row.seen:
                    print(f"missed: {row}", flush=True)
            print(f"{number} of {len(jobs)}", end="\r", file=sys.stderr, flush=True)
    print(f"{'error in one element':22}" + "".join(f"{f'{slip:.1%}':>16}" for slip in SLIPS))
    for dtype in DTYPES:
        cells = [share(found, dtype, slip) for slip in SLIPS]
        row = "".join(f"{f'{seen} of {all_}':>16}" for seen, all_ in cells)
        print(f"{dtype:22}{row}   false alarms: {alarms[dtype]}")
    return int(any(not one.seen for one in found) or any(alarms.values()))


if __name__ == "__main__":
    sys.exit(main())

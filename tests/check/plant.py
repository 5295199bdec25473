"""Errors planted in single elements: how small an error check still sees, wherever it is.

Each right program of the corpus is checked with its data in float32, bfloat16 and float16, and
through float8; it has to pass. Then one element of one result on its largest mesh is made wrong by
0.1, 1 or 10 percent and judged as check judges it: no program is traced or compiled again. A
process checks one program in all dtypes, so that programs that are equal in float64 are compiled
once.

    python -m tests.check.plant --jobs 16                 all programs, with a table: 140 s of CPU
    python -m tests.check.plant --jobs 8 --part 2/3       the second third of them
    python -m tests.check.plant data. clipped             programs with these parts in their names
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import sys
import time
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


def examined(pair: Any, dtype: str) -> Any:
    """The right program of a pair in a dtype, examined on its meshes."""
    from shardwise._analysis.check import examine, expand
    from shardwise._engine.static import Static

    right, args = in_dtype(pair, dtype)
    return examine(right, args, expand(pair.mesh), None, (None, Static()))


def planted(pair: Any, dtype: str) -> Iterator[Planted]:
    """All errors planted in the right program of a pair, and whether each was seen."""
    return plants(str(pair), dtype, examined(pair, dtype))


def plants(name: str, dtype: str, found: Any) -> Iterator[Planted]:
    """All errors planted in the results on the largest mesh, and whether each was seen."""
    import numpy as np

    from shardwise._analysis.check.judging import judge
    from shardwise._analysis.check.wrong import Wrong

    run, base = found.largest, found.base
    rows = zip(run.values, found.wanted, found.limits, strict=True)
    for index, (value, want, limit) in enumerate(rows):
        if want.value.dtype.kind != "f":
            continue
        own = value.array.reshape((-1, *want.value.shape))
        flat = np.flatnonzero(own[0])
        for number in flat[:: math.ceil(len(flat) / ELEMENTS) or 1]:
            at = tuple(map(int, np.unravel_index(number, want.value.shape)))
            for slip in SLIPS:
                changed = own.copy()
                changed[(slice(None), *at)] *= 1 + slip
                wrong = dataclasses.replace(value, array=changed.reshape(value.array.shape))
                one = Wrong(run, base, index, wrong, want, limit)
                seen = not (one.right or judge(one).right)
                yield Planted(name, dtype, slip, base.paths[index], at, seen)


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

    def __str__(self) -> str:
        missed = [f"\n  missed: {row}" for row in self.rows if not row.seen]
        count = f"{len(self.rows) - len(missed)} of {len(self.rows)} seen"
        return f"{self.name} in {self.dtype}: {self.refused or self.alarm or count}" + "".join(
            missed
        )


def tried(name: str) -> list[Tried]:
    """Check one program of the corpus in each dtype, then plant errors in it."""
    request_devices()
    from .corpus import pairs

    pair = next(one for one in pairs() if str(one) == name)
    return [_tried(pair, dtype) for dtype in DTYPES]


def _tried(pair: Any, dtype: str) -> Tried:
    try:
        found = examined(pair, dtype)
    except Exception as error:  # a program that is written for one dtype
        return Tried(str(pair), dtype, refused=f"{type(error).__name__}: {error}".splitlines()[0])
    if not found.verdict:
        return Tried(str(pair), dtype, alarm=str(found.verdict))
    return Tried(str(pair), dtype, tuple(plants(str(pair), dtype, found)))


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main() -> int:
    """Print the table; 1 if an error was missed, or a program that was not touched is faulted."""
    parser = argparse.ArgumentParser(description="Errors planted in single elements.")
    parser.add_argument("names", nargs="*", help="parts of the names of programs")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes (1)")
    parser.add_argument("--part", type=_part, default=(1, 1), help="K/N: one of N parts (1/1)")
    asked = parser.parse_args()
    request_devices()
    from .corpus import pairs

    names = [str(p) for p in pairs() if not asked.names or any(a in str(p) for a in asked.names)]
    part, parts = asked.part
    names = names[part - 1 :: parts]
    found: list[Tried] = []
    start = time.monotonic()
    # A process is replaced now and then: compiled programs are never freed.
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=12) as pool:
        for number, of_program in enumerate(pool.imap_unordered(tried, names), 1):
            found += of_program
            print(*of_program, sep="\n")
            seconds = time.monotonic() - start
            print(f"{number} of {len(names)} programs, {seconds:.0f} s", flush=True)
    rows = [row for one in found for row in one.rows]
    print(f"{'error in one element':22}" + "".join(f"{f'{slip:.1%}':>16}" for slip in SLIPS))
    for dtype in DTYPES:
        cells = [share(rows, dtype, slip) for slip in SLIPS]
        text = "".join(f"{f'{seen} of {all_}':>16}" for seen, all_ in cells)
        of_dtype = [one for one in found if one.dtype == dtype]
        alarms, refused = (
            sum(bool(one.alarm) for one in of_dtype),
            sum(bool(one.refused) for one in of_dtype),
        )
        print(f"{dtype:22}{text}   false alarms: {alarms}, refused: {refused}")
    return int(any(not row.seen for row in rows) or any(one.alarm for one in found))


if __name__ == "__main__":
    sys.exit(main())

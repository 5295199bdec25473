"""Which results of a run are wrong, each looked at as closely as it takes."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence

import numpy as np

from .compare import LEANING, STILL, TIMES, Movement, Tolerance, difference, in_parts
from .relate import Held
from .rounding import eps_of
from .running import Run, Wanted
from .wrong import Wrong

FEW, MANY, OFTEN = 2, 8, 16
"""How many runs with other roundings are made of a large program at first, and before something is
called wrong; and how many to see which decisions they turn."""

MOST, LESS = (96, 0.4), (24, 0.75)
"""How many more, of a light program and of another, and which part of the furthest counts: that of
more runs is further, as a rule."""

FAR = 8
"""By how many times the tolerance of its norm, or what one run shows of rounding, a result is off
that rounding does not explain."""

SAME, OTHER = "same", "other"
"""What meaning says of a result: that it is what it is on one device, or that it is not."""

ALIGNED = 0.9
"""How closely two errors have to point in one direction."""

GROWN, CLOSELY = 3, 0.95
"""How many times an error has to grow from one mesh to another, and how closely as it should."""


def wrong_results(
    run: Run,
    base: Run,
    wanted: Sequence[Wanted],
    limits: Sequence[Tolerance],
    meant: Sequence[str | None],
    factors: tuple[Sequence[float | None], Sequence[float | None]],
    other: Run | None = None,
) -> list[Wrong]:
    """The results of a run that are wrong.

    `meant` says of each result what its meaning says: `SAME` as on one device, `OTHER`, or nothing.
    `other` is the program on another mesh. `factors` are those by which results are multiplied
    here and there, where meaning says so.
    """
    if run.traced.tree != base.traced.tree:
        return [Wrong(run, base, 0, None, None, Tolerance(0.0), structure=True)]
    rows = list(zip(run.values, wanted, limits, strict=True))
    first = [
        Wrong(run, base, i, held, want.value, limit) for i, (held, want, limit) in enumerate(rows)
    ]
    # Where meaning has a cause and one result shows it, the others need no closer look. What the
    # numbers at hand show comes first, before the program is run again for it.
    known = [
        (one, want, *times)
        for m, one, want, *times in zip(meant, first, wanted, *factors, strict=True)
        if m == OTHER
    ]
    shown = any(_grows(one, other, *times) for one, _, *times in known)
    shown = shown or any(_shows(one, want, other) for one, want, *_ in known)
    judged = []
    for index, one in enumerate(first):
        if meant[index] == SAME and one.near:
            continue
        settled = meant[index] == OTHER and shown and not one.right
        closely = one if settled else judge(run, base, index, *rows[index])
        if closely.right and one.is_multiple(factors[0][index]):
            closely = dataclasses.replace(one, multiple=True)
        judged.append(closely)
    return [one for one in judged if not one.right]


def _grows(one: Wrong, other: Run | None, here: float | None, there: float | None) -> bool:
    """Whether a result is off as the factors have it `here` and `there`, which rounding is not."""
    if here is None or there is None or here == 1 or there == 1:
        return False
    aligned, further = one.beside(other)
    grown = (there - 1) / (here - 1)
    far = max(grown, 1 / grown) > GROWN
    return far and aligned > CLOSELY and abs(further / grown - 1) < 1 - CLOSELY


def _shows(one: Wrong, want: Wanted, other: Run | None) -> bool:
    """Whether a result that is known to be wrong is off as rounding would not have it.

    That is in one direction on two meshes. Errors of rounding have those on one device in common,
    which makes half of their directions the same, and more where few are made on the meshes.
    """
    if one.beside(other)[0] <= ALIGNED:
        return False
    if one.limit.coarse and not one.run.is_light:
        return _further([one.base], one, want, 1, FAR)  # it is the one device that both have
    if one.near:
        return False
    far = not one.limit.coarse or difference(one.got, want.value) > FAR * one.limit.norm
    return far or _further([one.base, one.run], one, want, MANY, LEANING)


def _further(runs: Sequence[Run], one: Wrong, want: Wanted, count: int, times: float) -> bool:
    """Whether a result is off so many times further than rounding moves it in so many runs."""
    moved = _moved(runs, one.index, want, count).moved
    off = in_parts(one.got) - in_parts(want.value)
    return float(np.linalg.norm(off)) > times * float(np.linalg.norm(moved))


def judge(run: Run, base: Run, index: int, value: Held, want: Wanted, limit: Tolerance) -> Wrong:
    """One result beside what it should be, looked at as closely as it takes."""
    one = Wrong(run, base, index, value, want.value, limit)
    looks = _looks(run, base, index, want, limit)
    # The next look is taken, and the program run for it, only if the last one did not do.
    while not (one.right or one.plain) and (move := next(looks, None)):
        one = dataclasses.replace(one, move=move)
    if one.right or not one.scattered:
        return one
    count, part = MOST if run.is_light else LESS
    further = _moved([base, run], index, want, count)
    return dataclasses.replace(one, move=one.move | further.part(part))


def _looks(run: Run, base: Run, index: int, want: Wanted, limit: Tolerance) -> Iterator[Movement]:
    """How far rounding moves a result, each time looked at more closely.

    Parts that devices round before they are added up only show on the mesh itself, and decisions
    that rounding may turn only where everything is moved further; NaN is such a decision.
    """
    if limit.given or not max(base.coarsest[index], run.coarsest[index]):
        return
    moved = functools.partial(_moved, index=index, want=want)
    if eps_of(want.value.dtype):
        if not run.is_light:
            yield moved([base], count=FEW)
        yield moved([base], count=MANY)
    both, closely = [base, run], STILL
    if eps_of(want.value.dtype):
        closely = moved(both, count=MANY)
        yield closely
    if run.decides:
        closely = closely.with_turns(moved(both, count=OFTEN, times=TIMES))
        yield closely
    here, there = (np.isfinite(in_parts(x)) for x in (run.values[index].first, want.value))
    if here.shape == there.shape and (here != there).any():
        yield closely.as_unsure_as(moved([base], count=OFTEN, times=TIMES))


def _moved(runs: Sequence[Run], index: int, want: Wanted, count: int, times: int = 1) -> Movement:
    """How far rounding was seen to move a result in so many runs of each program.

    The first is the one on one device.
    """
    first, *others = (one.movement(index, count, times) for one in runs)
    seen = [first, *(one.on_a_mesh() for one in others)]
    alike = [one for one in seen if np.shape(one.moved) == in_parts(want.value).shape]
    return functools.reduce(operator.or_, alike, STILL) + want.movement(count, times)

"""Decide which results are wrong, and which differ only by cancellation, ties or rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from .compare import NOTHING, Change, Tolerance, agree, gaps, is_inexact
from .running import Run, Wanted
from .wrong import Wrong

DRAWS = (2, 4, 8, 16, 32)
"""How often to perturb the arguments, as long as that explains more and more elements."""


@dataclasses.dataclass
class Judged:
    """The wrong results of a run, and the results in which a tie is decided differently."""

    wrong: list[Wrong]
    tied: list[Wrong]


def judge_results(
    run: Run,
    base: Run,
    wanted: Sequence[Wanted],
    limits: Sequence[Tolerance],
    surely: Sequence[bool],
) -> Judged:
    """Compare the results of a run with what they should be.

    `surely` says for each result whether it is known to differ from that on one device.
    """
    judgement = Judged([], [])
    if run.traced.tree != base.traced.tree:
        judgement.wrong.append(Wrong(run, base, 0, None, None, Tolerance(), structure=True))
        return judgement
    rows = zip(run.values, wanted, limits, surely, strict=True)
    for index, (value, expected, limit, differs) in enumerate(rows):
        result = Wrong(run, base, index, value, expected, limit)
        judged = result if result.right else judge(result, differs)
        if not judged.right:
            judgement.wrong.append(judged)
        elif judged.tie:
            judgement.tied.append(judged)
    return judgement


def all_agree(run: Run, base: Run, wanted: Sequence[Wanted], limits: Sequence[Tolerance]) -> bool:
    """Return whether every result of a run agrees with what it should be, on every device."""
    return run.traced.tree == base.traced.tree and all(
        row.shape == expected.value.shape and agree(row, expected.value, limit)
        for value, expected, limit in zip(run.values, wanted, limits, strict=True)
        for row in value.rows
    )


def judge(one: Wrong, surely: bool = False) -> Wrong:
    """Decide whether a result that differs is wrong, or only sensitive to rounding.

    With `surely` it is known to be wrong, and the question is whether these numbers show it.
    """
    if one.structure or not one.same_type or one.limit.given:
        return one
    tiny = _gap(one) <= NOTHING * one.base.scale
    if surely and not tiny and not one.run.rounds:
        return one
    one = _with_changes(one, [one.base, *([one.want.run] if one.want.run else [])])
    if not one.right and tiny and is_inexact(one.want.value):
        # Cancellation on the mesh alone. Only if tiny: a wrong program may be as sensitive.
        one = _with_changes(one, [one.base, one.run])
    if not one.right and one.run.rounds:
        return _unrounded(one)
    return one


def _with_changes(one: Wrong, runs: Sequence[Run]) -> Wrong:
    """Allow for how much a result changes when the arguments are perturbed."""
    count_before = _count(one)
    for count in DRAWS:
        change = Change()
        for run in runs:
            index = one.want.index if run is one.want.run else one.index
            run_change = run.changes(count, one.limit.change)[index]
            if np.shape(run_change.moved) in ((), _shape(one)):
                change |= run_change
        scale = max(NOTHING, one.limit.norm) * one.base.scale
        one = dataclasses.replace(one, change=change.allowing(scale))
        count_left = _count(one)
        if not count_left or (count_left == count_before and count >= DRAWS[1]):
            break
        count_before = count_left
    return one


def _unrounded(one: Wrong) -> Wrong:
    """Compare the program without its rounding to integers, on the mesh and on one device."""
    run, base = one.run.unrounded, one.base.unrounded
    expected = one.want
    if not expected.given:
        expected = Wanted(base.values[one.index].first, expected.dtype)
    if one.want.run is not None:
        ref = one.want.run.unrounded
        expected = dataclasses.replace(one.want, value=ref.values[one.want.index].first, run=ref)
    unrounded = Wrong(run, base, one.index, run.values[one.index], expected, one.limit)
    unrounded = unrounded if unrounded.right else judge(unrounded)
    return unrounded if unrounded.right else one


def _gap(one: Wrong) -> float:
    assert one.value is not None
    return max(float(gaps(row, one.want.value).max(initial=0.0)) for row in one.value.rows)


def _count(one: Wrong) -> int:
    return sum(int(wrong.sum()) for wrong in one.off_by_device)


def _shape(one: Wrong) -> tuple[int, ...]:
    value = one.want.value
    pair = is_inexact(value) and np.iscomplexobj(value)
    return (*value.shape, 2) if pair else value.shape

"""Decide which results are wrong, and which differ only by cancellation, ties or rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..lift import Run
from .compare import NOTHING, Movement, Tolerance, Wanted
from .wrong import Wrong

DRAWS = (2, 4, 8, 16, 32)
"""How often to perturb the arguments, as long as that explains more and more elements."""


def judge_results(
    run: Run,
    base: Run,
    wanted: Sequence[Wanted],
    limits: Sequence[Tolerance],
    surely: Sequence[bool] = (),
) -> tuple[list[Wrong], list[Wrong]]:
    """Return the wrong results of a run, and those in which a tie is decided differently.

    `surely` says for each result whether it is known to differ from that on one device.
    """
    wrong, tied = [], []
    for index, row in enumerate(zip(run.values, wanted, limits, strict=True)):
        result = Wrong(run, base, index, *row)
        judged = judge(result, bool(surely) and surely[index])
        if not judged.right:
            wrong.append(judged)
        elif judged.movement.samples and not judged.tiny:
            tied.append(judged)
    return wrong, tied


def judge(result: Wrong, surely: bool = False) -> Wrong:
    """Decide whether a result that differs is wrong, or only sensitive to rounding.

    With `surely` it is known to be wrong, and the question is whether these numbers show it.
    """
    if result.right or not result.same_type or result.limit.is_set:
        return result
    if surely and not result.tiny and not result.run.rounds:
        return result
    base, reference = result.base, result.want.run
    judged = _perturbed(result, [base, *([reference] if reference else [])])
    if not judged.right and judged.tiny:
        # Cancellation on the mesh alone. Only if tiny: a wrong program may be as sensitive.
        judged = _perturbed(judged, [base, result.run])
    if not judged.right and judged.run.rounds:
        unrounded = judge(_unrounded(judged))
        return unrounded if unrounded.right else judged
    return judged


def _perturbed(result: Wrong, runs: Sequence[Run]) -> Wrong:
    """Allow for how much a result changes when the arguments are perturbed."""
    scale = max(NOTHING, result.limit.norm) * result.base.scale
    shape = result.want.value.shape
    for count in DRAWS:
        before = result.count
        samples = []
        for run in runs:
            index = result.want.index if run is result.want.run else result.index
            rows = run.perturbed(count, result.limit.change)
            value = run.values[index].first
            samples += [(row[index], value) for row in rows if value.shape == shape]
        result = dataclasses.replace(result, movement=Movement(samples, scale))
        if result.right or (result.count == before and count >= DRAWS[1]):
            break
    return result


def _unrounded(result: Wrong) -> Wrong:
    """Return the result without rounding to integers, on the mesh, on one device, as expected."""
    run, base, want = result.run.unrounded, result.base.unrounded, result.want
    if want.run is not None:
        reference = want.run.unrounded
        want = dataclasses.replace(want, value=reference.values[want.index].first, run=reference)
    elif not want.is_value:
        want = Wanted(base.values[result.index].first, want.dtype)
    return Wrong(run, base, result.index, run.values[result.index], want, result.limit)

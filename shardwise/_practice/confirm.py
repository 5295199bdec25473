"""Confirm a right solution in a process that it cannot influence.

A solution could forge the report of its own process. So JAX traces the whole function to one
program, and that program, as data, is run in a process that never runs the solution, on new
inputs. The text of the program shows which collectives it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import compare, diagnose
from .cases import ExerciseCase, job, right
from .exercise import Exercise
from .sandbox.host import Sandbox

FORMS = ("mesh", "replace")
"""The forms of exercises whose function is one program that contains a shard_map."""

UNSEEN = ("unchecked", "vmap")
"""Requirements that cannot be seen in a traced program."""


def pitfall(
    exercise: Exercise,
    cases: Sequence[ExerciseCase],
    sandbox: Sandbox,
    source: str,
    name: str,
    seed: int,
) -> tuple[str, str]:
    """Return the pitfall and the reason of a solution that only seems right; empty if it is."""
    several = [case for case in cases if math.prod(case.sizes.values()) > 1]
    if exercise.form not in FORMS or not several:
        return "", ""
    rng = np.random.default_rng((seed, 1))
    case = several[int(rng.integers(len(several)))]
    task = job(exercise, case.sizes, case.args, "export")
    (ran,) = sandbox.run([task], source, name)
    answer = ran.data or {}
    if "program" not in answer:
        if "error" in answer:  # for example because it calls float()
            error = answer["error"]
            return "unconfirmed", f"{error['type']}: {error['message']}"[:900]
        return "tampered", "Asked for its program, the solution's process gave none."
    args = _others(exercise, case, rng)
    again = {**job(exercise, case.sizes, args, "replay"), "program": answer["program"]}
    (ran,) = sandbox.run([again], "", name)
    answer = ran.data or {}
    if ended := diagnose.of_ending(ran):
        return ended
    if "value" not in answer:
        error = answer.get("error", {}).get("message", "")
        return "unconfirmed", f"Its program does not run elsewhere: {error[:600]}"
    if not compare.same(answer["value"], right(exercise, case.sizes, args, sandbox)):
        return "unconfirmed", "On numbers that it has not seen, its program gives another result."
    for what, lacking in exercise.requires:
        if what not in UNSEEN and not diagnose.met(what, answer["facts"], case.sizes):
            return lacking, ""
    return "", ""


def _others(exercise: Exercise, case: ExerciseCase, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return arguments with new arrays; numbers such as seeds and counts do not change."""
    drawn = exercise.task.inputs(rng, dict(case.sizes))
    return tuple(
        old if isinstance(old, int | float | str) else new
        for old, new in zip(case.args, drawn, strict=True)
    )

"""The runs of an exercise: their meshes, arguments and expected results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.errors import ShardwiseError
from . import compare
from .exercise import Exercise
from .sandbox import wire
from .sandbox.host import Sandbox

DEVICES = 8
"""The number of devices for a solution that builds a mesh with one device per shard."""


@dataclasses.dataclass(frozen=True)
class ExerciseCase:
    """One run of an exercise: a mesh, the arguments, and the expected result."""

    sizes: Mapping[str, int]
    args: tuple[Any, ...]
    expected: Any
    mistakes: Mapping[str, Any]


def cases(exercise: Exercise, seed: int, sandbox: Sandbox) -> list[ExerciseCase]:
    """Return the runs of an exercise, with their expected results."""
    task = exercise.task
    cases_ = []
    for sizes in exercise.meshes:
        # The same seed for every mesh, so that only the mesh differs.
        args = tuple(task.inputs(np.random.default_rng(seed), dict(sizes)))
        expected = right(exercise, sizes, args, sandbox)
        mistakes = task.mistakes(dict(sizes), *args) if hasattr(task, "mistakes") else {}
        apart = {k: v for k, v in mistakes.items() if not compare.same(_plain(v), expected)}
        cases_.append(ExerciseCase(sizes, args, expected, {k: _plain(v) for k, v in apart.items()}))
    return cases_


def _plain(value: Any) -> Any:
    return wire.unpack(wire.pack(value))


def right(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], sandbox: Sandbox
) -> Any:
    """Return the expected result: from `expected` in task.py, or the solution on one device."""
    if hasattr(exercise.task, "expected"):
        return exercise.task.expected(*args)
    return _by_solution(exercise, sizes, args, sandbox)


def _by_solution(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], sandbox: Sandbox
) -> Any:
    """Return the result of the exercise's own solution on one device."""
    ones = dict.fromkeys(sizes, 1)
    (ran,) = sandbox.run([job(exercise, ones, args, "run")], exercise.solution, "solution.py")
    if ran.data is None or "value" not in ran.data:
        raise ShardwiseError(
            f"its solution gives no result on one device ({(ran.data or {}).get('error')})",
            where=str(exercise.folder),
            rule="Without expected(...) in task.py the solution says what is right.",
            remedy="fix solution.py, or write expected(*inputs) in task.py.",
        )
    return ran.data["value"]


def job(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], kind: str
) -> dict[str, Any]:
    """Return the job for a process, of this kind: `run`, `look`, `export` or `replay`."""
    count = math.prod(sizes.values())
    is_replace = exercise.form == "replace"
    return {
        "kind": kind,
        "exercise": exercise.name,
        "function": exercise.function,
        "args": args,
        "mesh": dict(sizes),
        "pass_mesh": exercise.form == "mesh",
        "replace": count if is_replace else None,
        "devices": DEVICES if kind == "look" or exercise.form == "shards" else count,
    }

"""The runs of an exercise: on which meshes, with which arguments, and what should come out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._base.errors import ShardwiseError, explain_error
from . import compare
from .exercise import Exercise
from .sandbox import wire
from .sandbox.host import Sandbox

DEVICES = 8
"""How many devices a solution finds that makes a mesh by itself of as many as it has shards."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of an exercise: a mesh, the arguments, and what should come out."""

    sizes: Mapping[str, int]
    args: tuple[Any, ...]
    expected: Any
    mistakes: Mapping[str, Any]


def cases(exercise: Exercise, seed: int, sandbox: Sandbox) -> list[Case]:
    """The runs of an exercise, with what should come out of each."""
    task = exercise.task
    found = []
    for sizes in exercise.meshes:
        # The same numbers for every mesh: only the mesh differs.
        args = tuple(task.inputs(np.random.default_rng(seed), dict(sizes)))
        expected = right(exercise, sizes, args, sandbox)
        mistakes = task.mistakes(dict(sizes), *args) if hasattr(task, "mistakes") else {}
        apart = {k: v for k, v in mistakes.items() if not compare.same(_plain(v), expected)}
        found.append(Case(sizes, args, expected, {k: _plain(v) for k, v in apart.items()}))
    return found


def _plain(value: Any) -> Any:
    return wire.unpack(wire.pack(value))


def right(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], sandbox: Sandbox
) -> Any:
    """Return what should come out: of `expected` in task.py, or of the solution on one device."""
    if hasattr(exercise.task, "expected"):
        return exercise.task.expected(*args)
    return _by_solution(exercise, sizes, args, sandbox)


def _by_solution(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], sandbox: Sandbox
) -> Any:
    """What the exercise's own solution gives on one device."""
    ones = dict.fromkeys(sizes, 1)
    (ran,) = sandbox.run([job(exercise, ones, args, "run")], exercise.solution, "solution.py")
    if ran.data is None or "value" not in ran.data:
        raise ShardwiseError(
            explain_error(
                f"its solution gives no result on one device ({(ran.data or {}).get('error')})",
                where=str(exercise.folder),
                rule="Without expected(...) in task.py the solution says what is right.",
                remedy="fix solution.py, or write expected(*inputs) in task.py.",
            )
        )
    return ran.data["value"]


def job(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], kind: str
) -> dict[str, Any]:
    """Return what a process is asked to do: `run`, `look`, `export` or `replay`."""
    count = math.prod(sizes.values())
    own = exercise.form == "replace"
    return {
        "kind": kind,
        "exercise": exercise.name,
        "function": exercise.function,
        "args": args,
        "mesh": dict(sizes),
        "pass_mesh": exercise.form == "mesh",
        "replace": count if own else None,
        "devices": DEVICES if kind == "look" or exercise.form == "shards" else count,
    }

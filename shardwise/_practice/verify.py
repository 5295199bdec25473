"""Verify that every solution in a folder passes and every wrong one fails with its pitfall."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .exercise import Exercise
from .judge import Judge
from .verdict import Judgement

SEED = 20
"""The seed of the inputs, which is fixed so that a failure can be reproduced."""


@dataclasses.dataclass(frozen=True)
class VerifiedFile:
    """The expected and the actual verdict on one file of an exercise."""

    exercise: str
    file: str
    expected: str
    """`right`, or the pitfall."""
    found: str
    judgement: Judgement

    @property
    def ok(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.expected == self.found

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as plain data."""
        return {
            "exercise": self.exercise,
            "file": self.file,
            "ok": self.ok,
            "expected": self.expected,
            "found": self.found,
            "seconds": round(self.judgement.seconds, 2),
            "cpu": round(self.judgement.cpu, 2),
        }


def verify(
    exercises: Sequence[Exercise],
    judge: Judge,
    report: Callable[[VerifiedFile], None] = lambda _: None,
) -> list[VerifiedFile]:
    """Judge the start, the solution and every wrong solution of each exercise."""
    proofs = []
    for exercise in exercises:
        files = {"solution.py": (exercise.solution, "right")}
        for name, source in exercise.wrong.items():
            files[f"wrong/{name}.py"] = (source, name.partition("--")[0])
        for file, (source, expected) in files.items():
            proof = _prove(exercise, file, source, expected, judge)
            proofs.append(proof)
            report(proof)
        proof = _start(exercise, judge)
        proofs.append(proof)
        report(proof)
    return proofs


def _prove(exercise: Exercise, file: str, source: str, expected: str, judge: Judge) -> VerifiedFile:
    judgement = judge.judge(exercise, source, file, seed=SEED)
    return VerifiedFile(exercise.name, file, expected, _found(judgement), judgement)


def _start(exercise: Exercise, judge: Judge) -> VerifiedFile:
    """Verify that the learner's initial file is not right already; any pitfall will do."""
    judgement = judge.judge(exercise, exercise.start, "start.py", seed=SEED)
    found = "wrong" if judgement.status == "wrong" else judgement.status
    return VerifiedFile(exercise.name, "start.py", "wrong", found, judgement)


def _found(judgement: Judgement) -> str:
    if judgement.ok:
        return "right"
    return judgement.pitfall.name if judgement.pitfall else judgement.status

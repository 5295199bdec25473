"""Verify that every solution in a folder passes and every wrong one fails with its pitfall."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from .exercise import Exercise
from .judge import Judge
from .verdict import RIGHT, WRONG, Judgement

SEED = 20
"""The seed of the inputs, which is fixed so that a failure can be reproduced."""


@dataclasses.dataclass(frozen=True)
class VerifiedFile:
    """The expected and the actual verdict on one file of an exercise."""

    exercise: str
    file: str
    expected: str
    """`right`, a pitfall, or `wrong` for any pitfall."""
    judgement: Judgement

    @property
    def found(self) -> str:
        """The verdict, as `expected` has it."""
        pitfall = self.judgement.pitfall
        return pitfall.name if pitfall and self.expected != WRONG else self.judgement.status

    @property
    def ok(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.expected == self.found

    def __str__(self) -> str:
        mismatch = "" if self.ok else f"   NOT {self.expected}"
        seconds = self.judgement.seconds
        return f"{seconds:5.1f} s  {self.exercise}/{self.file}: {self.found}{mismatch}"


def verify(exercises: Sequence[Exercise], judge: Judge) -> Iterator[VerifiedFile]:
    """Judge the solution, every wrong solution and the start of each exercise."""
    for exercise in exercises:
        files = [("solution.py", exercise.solution, RIGHT)]
        for name, source in exercise.wrong.items():
            files.append((f"wrong/{name}.py", source, name.partition("--")[0]))
        files.append(("start.py", exercise.start, WRONG))
        for file, source, expected in files:
            judgement = judge.judge(exercise, source, file, seed=SEED)
            yield VerifiedFile(exercise.name, file, expected, judgement)

"""What the terminal and the page share: a folder that is looked at, and a judge that stays warm."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .._base.errors import ShardwiseError
from .exercise import Exercise
from .folder import Folder, Stamp, stamp
from .judge import Judge, read
from .sandbox.host import Limits
from .verdict import NOT_RUN, Judgement


class Workshop:
    """A folder of exercises with a judge."""

    def __init__(self, folder: Folder, limits: Limits | None = None):
        self.folder = folder
        self.judge = Judge(limits, confirming="never")  # nobody cheats at patience
        self.verdicts: dict[str, Judgement] = {}
        self._seen: dict[str, Stamp | None] = self._look()

    def __enter__(self) -> Workshop:
        self.judge.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self.judge.__exit__()

    def _look(self) -> dict[str, Stamp | None]:
        return {one.name: stamp(self.folder.file(one)) for one in self.folder.exercises}

    def changed(self) -> list[Exercise]:
        """The exercises whose files have been saved since the last look."""
        self.folder.refresh()
        now = self._look()
        before, self._seen = self._seen, now
        names = {name for name, one in now.items() if one is not None and one != before.get(name)}
        return [one for one in self.folder.exercises if one.name in names]

    def run(self, exercise: Exercise) -> tuple[Judgement, bool]:
        """Judge the learner's file; whether it is right for the first time."""
        file = self.folder.file(exercise)
        try:
            found = self.judge.judge(exercise, read(file), file.name)
        except ShardwiseError as error:
            found = Judgement(exercise.name, exercise.title, file.name, NOT_RUN, reason=str(error))
        except Exception as error:  # a defect of ours: the next file is judged all the same
            reason = f"The judge failed on this file ({type(error).__name__}: {error})."
            found = Judgement(exercise.name, exercise.title, file.name, NOT_RUN, reason=reason)
        self.verdicts[exercise.name] = found
        try:
            return found, self.folder.note(exercise, found)
        except ShardwiseError as error:  # the verdict stands, wherever it can be recorded
            self.verdicts[exercise.name] = dataclasses.replace(
                found, reason=f"{found.reason}\nThe progress was not recorded. {error}".strip()
            )
            return self.verdicts[exercise.name], False

    def path(self, exercise: Exercise) -> Path:
        """The learner's file."""
        return self.folder.file(exercise)

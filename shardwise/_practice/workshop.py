"""The state shared by the terminal and the page: a watched folder, and a running judge."""

from __future__ import annotations

import dataclasses
from typing import Any

from .._base.errors import ShardwiseError
from .exercise import Exercise
from .folder import Folder, stamp
from .judge import Judge, read
from .sandbox.host import Limits
from .verdict import Judgement


class Workshop:
    """A folder of exercises with a judge."""

    def __init__(self, folder: Folder, limits: Limits | None = None):
        self.folder = folder
        self.judge = Judge(limits)
        self.verdicts: dict[str, Judgement] = {}
        self._seen: dict[str, Any] = self._look()

    def __enter__(self) -> Workshop:
        self.judge.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self.judge.__exit__()

    def _look(self) -> dict[str, Any]:
        return {
            exercise.name: stamp(self.folder.file(exercise)) for exercise in self.folder.exercises
        }

    def changed(self) -> list[Exercise]:
        """Return the exercises whose files have been saved since the last call."""
        self.folder.refresh()
        now = self._look()
        before, self._seen = self._seen, now
        names = {name for name, one in now.items() if one is not None and one != before.get(name)}
        return [one for one in self.folder.exercises if one.name in names]

    def run(self, exercise: Exercise) -> tuple[Judgement, bool]:
        """Judge the learner's file; return the verdict, and whether it is right the first time."""
        file = self.folder.file(exercise)
        try:
            judgement = self.judge.judge(exercise, read(file), file.name)
        except Exception as error:  # nothing may stop the watcher
            judgement = Judgement.of_failure(exercise, file.name, error)
        self.verdicts[exercise.name] = judgement
        try:
            return judgement, self.folder.note(exercise, judgement)
        except ShardwiseError as error:  # the verdict is valid even if it cannot be recorded
            self.verdicts[exercise.name] = dataclasses.replace(
                judgement,
                reason=f"{judgement.reason}\nThe progress was not recorded. {error}".strip(),
            )
            return self.verdicts[exercise.name], False

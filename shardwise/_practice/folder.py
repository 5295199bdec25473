"""A learner's folder: a file for each exercise, and a small file with the progress."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._base.durable.files import write_whole
from .._base.errors import ShardwiseError
from .exercise import Exercise, load_all
from .verdict import Judgement

STATE = ".practice.json"

README = """# Practice

Each file is an exercise: read the text on top, fill in the function, save.

    shardwise practice            watch this folder and judge each file as it is saved
    shardwise practice web        the same on a page in the browser
    shardwise practice list       what there is and what is done
    shardwise practice judge NAME one verdict on that exercise's file, and no watching
    shardwise practice hint NAME  a hint, one more each time
    shardwise practice show NAME  a solution, once yours is right

A program that is right on one device can be wrong on eight. The judge runs yours on all of them.
"""


class Folder:
    """A practice folder: its exercises and the learner's progress."""

    def __init__(self, path: Path, source: Path | None = None):
        self.path, self.source = path, source
        self.solved: dict[str, str] = {}
        self.hinted: dict[str, int] = {}

    @functools.cached_property
    def exercises(self) -> list[Exercise]:
        """Its exercises, which are code: nothing is loaded until they are asked for."""
        return load_all(self.source)

    # --- creating and finding

    @classmethod
    def start(cls, path: Path, source: Path | None) -> tuple[Folder, list[Exercise]]:
        """Write the exercises into a folder, except for files that are not empty."""
        folder = cls(path, source.resolve() if source else None)
        if os.path.exists(path / STATE):  # False for a folder without read permission
            folder._read()
        exercises = folder.exercises
        try:
            path.mkdir(parents=True, exist_ok=True)
            new = [exercise for exercise in exercises if _is_empty(folder.file(exercise))]
            for exercise in new:
                write_whole(folder.file(exercise), exercise.start.encode())
            if _is_empty(path / "README.md"):
                write_whole(path / "README.md", README.encode())
        except OSError as error:
            raise _cannot(path, error) from error
        folder.save()
        return folder, new

    @classmethod
    def above(cls, path: Path, source: Path | None = None) -> Folder | None:
        """Load the practice folder at `path`, or the nearest one above it, if there is one."""
        for place in (path.resolve(), *path.resolve().parents):
            if os.path.isfile(place / STATE):
                folder = cls(place, source)
                folder._read()
                return folder
        return None

    @classmethod
    def find(cls, path: Path, source: Path | None = None) -> Folder:
        """Load the practice folder at `path`, or the nearest one above it."""
        if folder := cls.above(path, source):
            return folder
        raise ShardwiseError(
            "this is not a practice folder",
            where=str(path),
            rule="A practice folder is made once and then worked in.",
            remedy="shardwise practice start, then cd practice. For one file: shardwise practice "
            "judge NAME FILE.",
        )

    # --- files

    def file(self, exercise: Exercise) -> Path:
        """Return the path of the learner's file."""
        return self.path / exercise.file_name

    def text(self, exercise: Exercise) -> str:
        """Return the text of the learner's file; empty if it cannot be read."""
        try:
            return self.file(exercise).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def reset(self, exercise: Exercise) -> Path | None:
        """Restart an exercise; return the path of the backup of a modified file."""
        file, backup = self.file(exercise), None
        try:
            if file.exists() and self.text(exercise) != exercise.start:
                backup = _free(file)
                file.rename(backup)
            write_whole(file, exercise.start.encode())
        except OSError as error:
            if backup is not None:
                with contextlib.suppress(OSError):
                    backup.rename(file)
            raise _cannot(file, error) from error
        self.refresh()
        self.solved.pop(exercise.name, None)
        self.hinted.pop(exercise.name, None)
        self.save()
        return backup

    # --- progress

    @property
    def current(self) -> Exercise | None:
        """The first exercise that is not done."""
        return next(
            (exercise for exercise in self.exercises if exercise.name not in self.solved), None
        )

    @property
    def unjudged(self) -> list[Exercise]:
        """The exercises that are not done and whose files were edited."""
        open_ = [exercise for exercise in self.exercises if exercise.name not in self.solved]
        return [exercise for exercise in open_ if self.text(exercise) not in ("", exercise.start)]

    def refresh(self) -> None:
        """Reload the progress, which `judge` may have changed while the watcher runs."""
        # An unreadable file counts as missing: the next save replaces it.
        with contextlib.suppress(ShardwiseError):
            self._read()

    def note(self, exercise: Exercise, judgement: Judgement) -> bool:
        """Record a verdict, and return whether the exercise is right for the first time."""
        self.refresh()
        if not judgement.ok or exercise.name in self.solved:
            return False
        self.solved[exercise.name] = datetime.now(UTC).isoformat(timespec="seconds")
        self.save()
        return True

    def onward(self, first: bool) -> str:
        """Return what to do after a right verdict, which may be the first for this exercise."""
        after = self.current
        if after is not None:
            return f"Next: {after.file_name} ({after.title})"
        return "That was the last one. All exercises are done." if first else ""

    def hint(self, exercise: Exercise) -> tuple[list[str], bool]:
        """Return the hints so far and one more, and whether that was the last."""
        self.refresh()
        count = min(self.hinted.get(exercise.name, 0) + 1, len(exercise.hints))
        self.hinted[exercise.name] = count
        self.save()
        return list(exercise.hints[:count]), count >= len(exercise.hints)

    def save(self) -> None:
        """Write the progress atomically."""
        data = {
            "version": 1,
            "exercises": str(self.source) if self.source else None,
            "solved": self.solved,
            "hints": self.hinted,
        }
        try:
            write_whole(self.path / STATE, f"{json.dumps(data, indent=2)}\n".encode())
        except OSError as error:
            raise _cannot(self.path / STATE, error) from error

    def _read(self) -> None:
        file = self.path / STATE
        try:
            data: Any = json.loads(file.read_text(encoding="utf-8"))
            self.solved = {str(k): str(v) for k, v in data["solved"].items()}
            self.hinted = {str(k): int(v) for k, v in data["hints"].items()}
            source = data.get("exercises")
            self.source = self.source or (Path(source) if source else None)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ShardwiseError(
                f"the progress cannot be read ({type(error).__name__})",
                where=str(file),
                rule="It is JSON that shardwise writes.",
                remedy="delete the file; the exercises stay as they are.",
            ) from error


def about_hints(exercise: Exercise) -> str:
    """Return a sentence that distinguishes the hints of an exercise from that of a verdict."""
    return (
        f"Hints on the way through {exercise.name}, from the gentle to the plain. "
        "A verdict's hint is another: it is about the mistake that was found."
    )


def stamp(file: Path) -> tuple[int, int] | None:
    """Return the modification time and the size of a file; None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _is_empty(file: Path) -> bool:
    """Return whether the file is missing or empty, so that writing it loses nothing."""
    return not file.exists() or (file.is_file() and not file.stat().st_size)


def _free(file: Path) -> Path:
    names = (file.with_name(f"{file.stem}.before{number or ''}.txt") for number in range(10_000))
    return next(name for name in names if not name.exists())


def _cannot(path: Path, error: OSError) -> ShardwiseError:
    return ShardwiseError(
        f"it cannot be written ({error.strerror})",
        where=str(path),
        remedy="name a folder that may be written to: shardwise practice start DIR.",
    )

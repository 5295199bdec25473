"""The log of a training: a JSON object per line and step, each with its own checksum."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...._base.durable import Identity, broken_seal, seal, unused, write_whole
from ...._base.errors import ShardingError, ShardwiseError, warn

Row = dict[str, Any]


class Log:
    """Rows of `step`, `seconds` and metrics, in a file and in memory.

    A resumed training continues the same file after the row of its checkpoint. The file is created
    with the first row.

    Args:
        path: The file.
        resume_at: The step that the training resumes from; 0 for a new one.
        complete: The last step that must be in the log.
        disposable: The most steps of a log that may be overwritten: a training killed before its
            first checkpoint. A new training renames any longer log.
        run: The name of the run, part of the checksum of every row.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        resume_at: int,
        complete: int,
        disposable: int = 0,
        run: str = "",
    ) -> None:
        self.path, self._run = Path(path), run
        self._check_path()
        # Resolved, so that a symbolic link is not replaced.
        self._file = self.path.resolve()
        self.rows: list[Row] = []
        self._identity: Identity | None = None
        self._make_room()
        if resume_at:
            self._resume(resume_at, complete)
        elif self._file.exists() and not self._is_disposable(disposable):
            self._file.rename(unused(self._beside("before")))

    def add(self, rows: list[Row]) -> None:
        """Append rows to the file."""
        self.rows += rows
        self._check_file()
        try:
            if self._identity is None:
                self._rewrite()
            else:
                with self._file.open("ab") as file:
                    file.write(self._text(rows))
        except OSError as error:
            raise self._unwritable(error) from error

    def _check_file(self) -> None:
        """Raise if the file was replaced; warn and rewrite it if it was deleted."""
        change = "" if self._identity is None else self._identity.lost()
        if not change:
            return
        if self._file.exists():
            raise ShardwiseError(
                f"it {change} while the training ran",
                where=str(self.path),
                rule="Two trainings must not write one log.",
                remedy="name another log for one of them.",
            )
        warn(
            f"{self.path} {change} while the training ran; it is rewritten",
        )
        self._identity = None

    def _rewrite(self) -> None:
        """Rewrite the file, without dropped rows."""
        write_whole(self._file, self._text(self.rows))
        self._identity = Identity(self._file)

    def _text(self, rows: list[Row]) -> bytes:
        return "".join(json.dumps(seal(row, self._run)) + "\n" for row in rows).encode()

    def _beside(self, word: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{word}")

    # --- resuming

    def _resume(self, resume_at: int, complete: int) -> None:
        """Keep the rows up to a step; warn about missing or damaged ones."""
        rows, damaged = self._read()
        if damaged and not rows:
            raise ShardingError(
                f"{self.path} cannot be read as the log of this training: {damaged[0]}",
                where="argument 'log'",
                rule="A resumed training continues its own log.",
                remedy="move that file, or name another one.",
            )
        by_step = {row["step"]: row for row in rows if row["step"] <= resume_at}
        self.rows = [by_step[step] for step in sorted(by_step)]
        missing = _ranges(set(range(1, complete + 1)) - {row["step"] for row in self.rows})
        message = f"{self.path}: the rows of {missing} are missing" if missing else ""
        if missing and damaged:
            backup = unused(self._beside("damaged"))
            write_whole(backup, self._file.read_bytes())
            message += f" or damaged ({damaged[0]}); the file as it was is kept as {backup.name}"
        if message:
            warn(f"{message}. The training itself is whole.")
        if self._file.exists():
            self._rewrite()

    def _is_disposable(self, most: int) -> bool:
        if not self._file.stat().st_size:
            return True
        rows, damaged = self._read()
        return bool(rows) and not damaged and all(row["step"] <= most for row in rows)

    def _read(self) -> tuple[list[Row], list[str]]:
        """Return the valid rows, and what is wrong with the others."""
        if not self._file.exists():
            return [], []
        # A line that a crash has truncated is later than any checkpoint.
        lines = self._file.read_bytes().split(b"\n")[:-1]
        rows, damaged = [], []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                reason = broken_seal(row, self._run)
            except (ValueError, RecursionError) as error:
                row, reason = {}, str(error)
            if reason:
                damaged.append(f"line {number}: {reason}")
            else:
                rows.append({name: value for name, value in row.items() if name != "crc"})
        return rows, damaged

    # --- paths

    def _check_path(self) -> None:
        name, suffix = self.path.name, self.path.suffix
        suggestion = self.path.with_name("log.jsonl")
        if self.path.is_dir():
            problem, suggestion = f"{self.path} is a folder", self.path / "log.jsonl"
        elif name == ".jsonl":
            problem = f"{name!r} has nothing before the dot"
        elif suffix != ".jsonl":
            problem = f"{name!r} ends in {suffix!r}" if suffix else f"{name!r} has no suffix"
            suggestion = self.path.with_suffix(".jsonl")
        else:
            return
        raise ShardingError(
            problem,
            where="argument 'log'",
            rule="A log is a .jsonl file.",
            remedy=f"log={str(suggestion)!r}",
        )

    def _make_room(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(self._file.parent, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> ShardwiseError:
        return ShardwiseError(
            f"it cannot be written: {error.strerror or error}",
            where=f"log {str(self.path)!r}",
            rule="The checkpoints, if there are any, are not affected.",
            remedy="make room or repair the folder, and run it again: it resumes from the "
            "newest checkpoint.",
        )


def _ranges(steps: set[int]) -> str:
    """Return steps as text: `steps 3 to 7, 9`."""
    parts: list[list[int]] = []
    for step in sorted(steps):
        if parts and parts[-1][-1] == step - 1:
            parts[-1][1:] = [step]
        else:
            parts.append([step])
    texts = [" to ".join(map(str, part)) for part in parts]
    rest = f" and {len(texts) - 3} more parts" if len(texts) > 3 else ""
    return f"step{'s' * (len(steps) > 1)} {', '.join(texts[:3])}{rest}" if texts else ""

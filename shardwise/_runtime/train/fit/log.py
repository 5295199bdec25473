"""The log of a training, JSONL or CSV: one row per step, each with its own checksum."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from ...._base.durable import Identity, broken_seal, seal, unused, write_whole
from ...._base.errors import ShardingError, ShardwiseError, warn

Row = dict[str, Any]

_SUFFIXES = (".jsonl", ".csv")


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
        self._columns: list[str] = []
        self._identity: Identity | None = None
        self._make_room()
        if resume_at:
            self._resume(resume_at, complete)
        elif self._file.exists() and not self._is_disposable(disposable):
            self._file.rename(unused(self._beside("before")))

    def add(self, rows: list[Row]) -> None:
        """Append rows to the file."""
        self.rows += rows
        new = [name for row in rows for name in row if name not in self._columns]
        self._check_file()
        try:
            if self._identity is None or (self._is_csv and new):
                self._rewrite()
                return
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
        """Rewrite the file, without dropped rows or with a new column."""
        self._columns = list(
            dict.fromkeys(name for row in map(self._sealed, self.rows) for name in row)
        )
        write_whole(self._file, self._text(self.rows, head=bool(self._columns)))
        self._identity = Identity(self._file)

    def _text(self, rows: list[Row], head: bool = False) -> bytes:
        sealed = map(self._sealed, rows)
        if not self._is_csv:
            return "".join(json.dumps(row) + "\n" for row in sealed).encode()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        if head:
            writer.writeheader()
        writer.writerows(sealed)
        return text.getvalue().encode()

    def _sealed(self, row: Row) -> Row:
        return seal(row, self._run)

    @property
    def _is_csv(self) -> bool:
        return self.path.suffix == ".csv"

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
        self.rows = _in_order(rows, resume_at)
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
        names = []
        if self._is_csv and lines:
            head, *lines = lines
            names = next(csv.reader([head.decode(errors="replace").rstrip("\r")]), [])
        rows, damaged = [], []
        for number, line in enumerate(lines, 2 if self._is_csv else 1):
            row: Row = {}
            try:
                row = _csv_row(names, line) if self._is_csv else json.loads(line)
                reason = broken_seal(row, self._run) or _not_a_row(row)
            except (ValueError, RecursionError) as error:
                reason = str(error)
            if reason:
                damaged.append(f"line {number}: {reason}")
            else:
                rows.append({name: value for name, value in row.items() if name != "crc"})
        return rows, damaged

    # --- paths

    def _check_path(self) -> None:
        name, suffix = self.path.name, self.path.suffix
        if self.path.is_dir():
            problem, suggestion = f"{self.path} is a folder", self.path / "log.jsonl"
        elif name in _SUFFIXES:
            problem, suggestion = (
                f"{name!r} has nothing before the dot",
                self.path.with_name(f"log{name}"),
            )
        elif suffix not in _SUFFIXES:
            problem = f"{name!r} ends in {suffix!r}" if suffix else f"{name!r} has no suffix"
            suggestion = self.path.with_suffix(".jsonl")
        else:
            return
        raise ShardingError(
            problem,
            where="argument 'log'",
            rule="A log is a .jsonl or a .csv file.",
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


def _not_a_row(row: Row) -> str:
    step, seconds = row.get("step"), row.get("seconds")
    valid = isinstance(step, int) and isinstance(seconds, int | float)
    return "" if valid else "it has no step and seconds"


def _in_order(rows: list[Row], last: int) -> list[Row]:
    """Return the rows up to a step, each step once."""
    by_step = {row["step"]: row for row in rows if 0 < row["step"] <= last}
    return [by_step[step] for step in sorted(by_step)]


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


def _csv_row(names: list[str], line: bytes) -> Row:
    values = next(csv.reader([line.decode().rstrip("\r")]), [])
    if len(values) != len(names):
        raise ValueError(f"it has {len(values)} values for {len(names)} columns")
    return {n: v if n == "crc" else _number(v) for n, v in zip(names, values, strict=True) if v}


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)

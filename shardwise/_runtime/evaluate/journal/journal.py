"""Finished steps on disk, in SQLite, so that a kill at any moment loses nothing written.

One row per step, keyed by its first example, and one transaction per group of steps. A step is in
the file completely or not at all, and never twice. The file belongs to one run, identified by its
fingerprint, and to one process at a time. Rows are verified when they are read (`rows.py`): a
damaged row is reported, and its step computed again.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...._base.durable import Identity, hindrance, holder
from ...._base.errors import ShardwiseError, warn
from ..fingerprint import differences
from ..spans import Span
from .rows import Ledger, Stored, fact_row, read_facts

_FORMAT = "shardwise evaluate 3"
_TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL)",
    "steps": "CREATE TABLE steps (start INTEGER PRIMARY KEY, rows INTEGER NOT NULL, "
    "batch INTEGER NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL)",
}
_GROUP_SECONDS = 0.25
_GROUP_STEPS = 512
_ROW_BYTES = 40  # what SQLite adds to a row, and the write-ahead log to that, generously
_SPARE_BYTES = 8 << 20


class Journal:
    """The journal of one run; a context manager.

    Args:
        path: The file. It is created if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._group: list[Stored] = []
        self._written = time.monotonic()
        self._ledger = Ledger(b"")
        self._database = self._open()
        self._identity = Identity(self.path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.flush()
        finally:
            self._database.close()

    def _open(self) -> sqlite3.Connection:
        problem = hindrance(self.path)
        if problem is not None:
            remedy = "name a file in an existing, writable folder."
            raise ShardwiseError(problem, where=self._where, remedy=remedy)
        try:
            # An absolute path is always a file: ":memory:" alone would be none.
            database = sqlite3.connect(self.path.absolute(), timeout=0.2, isolation_level=None)
            try:
                _prepare(database)
            except BaseException:
                database.close()
                raise
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return database

    def _unusable(self, error: sqlite3.Error) -> ShardwiseError:
        text = str(error)
        if "locked" in text:
            problem = f"{holder(self.path)} is writing it."
            remedy = "wait for it, or use another path."
        elif "not a database" in text:
            problem, remedy = (
                "the file is not a journal, or its header is damaged.",
                "use another path.",
            )
        elif _is_damage(error):
            problem, remedy = f"it is damaged: {text}.", "delete the file to start over."
        else:
            problem, remedy = f"it cannot be written: {text}.", "use a path that can be written."
        return ShardwiseError(problem, where=self._where, remedy=remedy)

    @property
    def _where(self) -> str:
        return f"journal {str(self.path)!r}"

    def meta(self) -> dict[str, Any]:
        """Return the facts about the run; empty for a new journal."""
        facts, damaged = read_facts(self._read("SELECT key, value, crc FROM meta"))
        if damaged:
            raise ShardwiseError(
                f"it is damaged: the record of its run ({', '.join(damaged)}) does not match its "
                "checksum.",
                where=self._where,
                rule="Finished steps count only if their run is known.",
                remedy="delete the file to start over.",
            )
        if facts and facts.get("format") != _FORMAT:
            raise ShardwiseError(
                f"its format is {facts.get('format')!r}, this version writes {_FORMAT!r}.",
                where=self._where,
                remedy="use another path, or the version that wrote it.",
            )
        if facts and "fingerprint" not in facts:
            raise ShardwiseError(
                "it is damaged: the fingerprint of its run is missing.",
                where=self._where,
                rule="Finished steps count only if their run is known.",
                remedy="delete the file to start over.",
            )
        return facts

    def note(self, **facts: Any) -> None:
        """Write facts about the run immediately."""
        rows = [fact_row(key, value) for key, value in facts.items()]
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", rows)

    def claim(self, fingerprint: dict[str, str], names: dict[str, str]) -> None:
        """Claim the journal for a run; raise with the differences if it belongs to another.

        Args:
            fingerprint: The fingerprint of the run.
            names: Facts for messages that may differ, such as the name of `fn`.
        """
        recorded = self.meta()
        self._ledger.run = json.dumps(fingerprint, sort_keys=True).encode()
        if not recorded:
            self.note(format=_FORMAT, fingerprint=fingerprint, names=names)
            return
        changes = differences(recorded.get("fingerprint", {}), fingerprint)
        if changes:
            listed = "".join(f"\n    - {line}" for line in changes)
            renamed = differences(recorded.get("names", {}), names)
            raise ShardwiseError(
                f"it belongs to another run:{listed}",
                where=self._where,
                rule="Finished steps count only for the same data, fn, state and batch."
                + (f" Also different: {'; '.join(renamed)}." if renamed else ""),
                remedy="use another path, or delete the file to start over.",
            )

    def reserve(self, steps: int, size: int) -> None:
        """Raise now if the disk has no room for this many rows of this size."""
        needed = steps * (size + _ROW_BYTES) * 2 + _SPARE_BYTES
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            raise ShardwiseError(
                f"the disk has {free >> 20} MiB free, the run needs up to {needed >> 20} MiB.",
                where=self._where,
                rule="evaluate does not start a run that it cannot record.",
                remedy="free some space, use another path or a larger batch.",
            )

    def steps(self, length: int | None) -> Iterator[tuple[Span, int, bytes]]:
        """Yield the finished steps, in the order of their examples: span, batch, numbers.

        Damaged rows are skipped, reported and deleted.

        Args:
            length: The number of examples, if it is known.
        """
        self._ledger.length = length
        query = "SELECT start, rows, batch, payload, crc FROM steps ORDER BY start"
        yield from self._ledger.steps(self._read(query))
        damaged = self._ledger.damaged
        if damaged:
            start, reason = next(iter(damaged.items()))
            count = "a row is" if len(damaged) == 1 else f"{len(damaged)} rows are"
            warn(
                f"{self._where}: {count} damaged (from example {start} on: {reason}) and computed "
                "again",
            )
            self._write("DELETE FROM steps WHERE start = ?", [(start,) for start in damaged])

    @property
    def damaged(self) -> int:
        """The number of rows that were skipped."""
        return len(self._ledger.damaged)

    def _read(self, query: str) -> Iterator[Any]:
        try:
            yield from self._database.execute(query)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def add(self, span: Span, batch: int, payload: bytes) -> None:
        """Record a finished step; it is on disk within a fraction of a second."""
        self._group.append(self._ledger.row(span, batch, payload))
        elapsed = time.monotonic() - self._written
        if len(self._group) >= _GROUP_STEPS or elapsed >= _GROUP_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the pending steps, in one transaction."""
        group, self._group = self._group, []
        self._written = time.monotonic()
        if group:
            self.watch()
            self._write("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", group)

    def watch(self) -> None:
        """Raise if the file was deleted or moved: SQLite would continue to write to it."""
        change = self._identity.lost()
        if change:
            raise ShardwiseError(
                f"it {change} while the run wrote it.",
                where=self._where,
                rule="The recorded steps went with it.",
                remedy="put it back if it was moved, and run again with the same journal.",
            )

    def _write(self, statement: str, rows: list[Any]) -> None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany(statement, rows)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if _is_damage(error):
                raise self._unusable(error) from error
            raise ShardwiseError(
                f"writing failed: {error}.",
                where=self._where,
                rule="Steps written before this are safe and will not be computed again.",
                remedy="make room on the disk and run again with the same journal.",
            ) from error


def _is_damage(error: sqlite3.Error) -> bool:
    text = str(error)
    # A duplicate step was not found when the steps were read, so an index is damaged.
    return isinstance(error, sqlite3.IntegrityError) or any(
        word in text for word in ("malformed", "corrupt", "no such", "decode", "other tables")
    )


def _prepare(database: sqlite3.Connection) -> None:
    tables = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    if tables and tables.keys() != _TABLES.keys():
        raise sqlite3.DatabaseError("not a database of this kind")
    if tables and tables != _TABLES:
        raise sqlite3.DatabaseError("it has other tables than this version of shardwise writes")
    # Exclusive locking excludes a second process; the kernel releases the lock on kill -9.
    database.execute("PRAGMA locking_mode=EXCLUSIVE")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.execute("BEGIN IMMEDIATE")
    if not tables:
        for statement in _TABLES.values():
            database.execute(statement)
    database.execute("INSERT OR REPLACE INTO meta VALUES ('probe', '0', 0)")
    database.execute("DELETE FROM meta WHERE key = 'probe'")
    database.execute("COMMIT")

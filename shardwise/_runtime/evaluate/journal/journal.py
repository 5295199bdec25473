"""Finished steps on disk, in SQLite, so that a kill at any moment loses nothing written.

One row per step, keyed by its first example, and one transaction per group of steps. A step is in
the file completely or not at all, and never twice. The file belongs to one run, identified by its
fingerprint, and to one process at a time.

Rows are verified when they are read. The checksum of a row covers all of its values and the
fingerprint of the run, so that a row that was changed, or that belongs to another run, does not
match; rows must also be in range and not overlap. A damaged row is reported, and its step computed
again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...._base.durable import Identity, checksum, hindrance, holder
from ...._base.errors import ShardwiseError, warn
from ..fingerprint import differences
from ..spans import Span

_FORMAT = "shardwise evaluate 3"
_TABLES = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL)",
    "steps": "CREATE TABLE steps (start INTEGER PRIMARY KEY, rows INTEGER NOT NULL, "
    "batch INTEGER NOT NULL, payload BLOB NOT NULL, crc INTEGER NOT NULL)",
}
_GROUP_SECONDS = 0.25
_GROUP_STEPS = 512


class Journal:
    """The journal of one run; a context manager.

    Args:
        path: The file. It is created if it does not exist.

    Attributes:
        damaged: Why rows were skipped, by their key.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged: dict[Any, str] = {}
        self._run = b""
        self._group: list[tuple[int, int, int, bytes, int]] = []
        self._written = time.monotonic()
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
        facts: dict[str, Any] = {}
        damaged = []
        for key, text, crc in self._read("SELECT key, value, crc FROM meta"):
            readable = isinstance(key, str) and isinstance(text, str)
            if readable and crc == checksum(key.encode(), text.encode()):
                facts[key] = json.loads(text)
            else:
                damaged.append(str(key))
        flaw = ""
        if damaged:
            flaw = f"the record of its run ({', '.join(damaged)}) does not match its checksum."
        elif facts and facts.get("format") != _FORMAT:
            raise ShardwiseError(
                f"its format is {facts.get('format')!r}, this version writes {_FORMAT!r}.",
                where=self._where,
                remedy="use another path, or the version that wrote it.",
            )
        elif facts and "fingerprint" not in facts:
            flaw = "the fingerprint of its run is missing."
        if flaw:
            raise ShardwiseError(
                f"it is damaged: {flaw}",
                where=self._where,
                rule="Finished steps count only if their run is known.",
                remedy="delete the file to start over.",
            )
        return facts

    def note(self, **facts: Any) -> None:
        """Write facts about the run immediately."""
        texts = {key: json.dumps(value) for key, value in facts.items()}
        rows = [(key, text, checksum(key.encode(), text.encode())) for key, text in texts.items()]
        self._write("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", rows)

    def claim(self, fingerprint: dict[str, str], names: dict[str, str]) -> None:
        """Claim the journal for a run; raise with the differences if it belongs to another.

        Args:
            fingerprint: The fingerprint of the run.
            names: Facts for messages that may differ, such as the name of `fn`.
        """
        recorded = self.meta()
        self._run = json.dumps(fingerprint, sort_keys=True).encode()
        if not recorded:
            self.note(format=_FORMAT, fingerprint=fingerprint, names=names)
            return
        changes = differences(recorded["fingerprint"], fingerprint)
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

    def steps(self, length: int | None) -> Iterator[tuple[Span, int, bytes]]:
        """Yield the finished steps, in the order of their examples: span, batch, numbers.

        Damaged rows are skipped, reported and deleted.

        Args:
            length: The number of examples, if it is known.
        """
        stop = 0
        query = "SELECT start, rows, batch, payload, crc FROM steps ORDER BY start"
        for start, rows, batch, payload, crc in self._read(query):
            flaw = self._flaw(start, rows, batch, payload, crc, length)
            if not flaw and start < stop:
                flaw = f"it overlaps the row that ends at {stop}"
            if flaw:
                self.damaged[start] = flaw
                continue
            stop = start + rows
            yield Span(start, rows), batch, payload
        if self.damaged:
            start, flaw = next(iter(self.damaged.items()))
            count = "a row is" if len(self.damaged) == 1 else f"{len(self.damaged)} rows are"
            warn(
                f"{self._where}: {count} damaged (from example {start} on: {flaw}) and computed "
                "again",
            )
            self._write("DELETE FROM steps WHERE start = ?", [(start,) for start in self.damaged])

    def _flaw(
        self, start: Any, rows: Any, batch: Any, payload: Any, crc: Any, length: int | None
    ) -> str:
        """Return what is wrong with a row, as a clause; "" if nothing is."""
        numbers = start, rows, batch, crc
        if not all(isinstance(x, int) for x in numbers) or not isinstance(payload, bytes):
            return "it has values of other types"
        if not (start >= 0 and 0 < rows <= batch):
            return f"it is of {rows} examples from {start} on, at a batch of {batch}"
        if length is not None and start + rows > length:
            return f"it ends at {start + rows} of {length} examples"
        if crc != self._sum(start, rows, batch, payload):
            return "its checksum does not match"
        return ""

    def _sum(self, start: int, rows: int, batch: int, payload: bytes) -> int:
        return checksum(self._run, struct.pack("<qqq", start, rows, batch), payload)

    def _read(self, query: str) -> Iterator[Any]:
        try:
            yield from self._database.execute(query)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def add(self, span: Span, batch: int, payload: bytes) -> None:
        """Record a finished step; it is on disk within a fraction of a second."""
        crc = self._sum(span.start, span.rows, batch, payload)
        self._group.append((span.start, span.rows, batch, payload, crc))
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

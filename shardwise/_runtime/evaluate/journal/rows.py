"""The rows of a journal, and how they are verified.

A step is a row of first example, number of examples, batch, numbers and a checksum over all of them
and the fingerprint of the run, so that a row that was changed, or that belongs to another run, does
not match. Rows must also be in range and not overlap.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...._base.durable import checksum
from ..spans import Span

Stored = tuple[int, int, int, bytes, int]
"""A row as SQLite has it: start, rows, batch, payload, crc."""


@dataclass
class Ledger:
    """Writes and verifies the rows of one file.

    Attributes:
        run: The fingerprint of the run, as bytes.
        length: The number of examples, if it is known.
        damaged: Why rows were skipped, by their key.
    """

    run: bytes
    length: int | None = None
    damaged: dict[Any, str] = field(default_factory=dict)

    def row(self, span: Span, batch: int, payload: bytes) -> Stored:
        """Return the row of a step."""
        return span.start, span.rows, batch, payload, self._sum(span, batch, payload)

    def steps(self, stored: Iterable[Any]) -> Iterator[tuple[Span, int, bytes]]:
        """Yield the steps of valid rows: span, batch, numbers. Record the others as damaged."""
        stop = 0
        for start, rows, batch, payload, crc in stored:
            reason = self._wrong(start, rows, batch, payload, crc) or (
                f"it overlaps the row that ends at {stop}" if start < stop else ""
            )
            if reason:
                self.damaged[start] = reason
                continue
            span = Span(start, rows)
            stop = span.stop
            yield span, batch, payload

    def _wrong(self, start: Any, rows: Any, batch: Any, payload: Any, crc: Any) -> str:
        numbers = start, rows, batch, crc
        if not all(isinstance(x, int) for x in numbers) or not isinstance(payload, bytes):
            return "it has values of other types"
        if not (start >= 0 and 0 < rows <= batch):
            return f"it is of {rows} examples from {start} on, at a batch of {batch}"
        if self.length is not None and start + rows > self.length:
            return f"it ends at {start + rows} of {self.length} examples"
        if crc != self._sum(Span(start, rows), batch, payload):
            return "its checksum does not match"
        return ""

    def _sum(self, span: Span, batch: int, payload: bytes) -> int:
        return checksum(self.run, struct.pack("<qqq", span.start, span.rows, batch), payload)


def fact_row(key: str, value: Any) -> tuple[str, str, int]:
    """Return the row of a fact about the run: key, value, checksum."""
    text = json.dumps(value)
    return key, text, checksum(key.encode(), text.encode())


def read_facts(stored: Iterable[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the facts in valid rows, and the keys of the others."""
    facts, damaged = {}, []
    for key, text, crc in stored:
        readable = isinstance(key, str) and isinstance(text, str)
        if readable and crc == checksum(key.encode(), text.encode()):
            facts[key] = json.loads(text)
        else:
            damaged.append(str(key))
    return facts, damaged

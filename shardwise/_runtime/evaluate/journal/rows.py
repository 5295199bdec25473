"""The rows of a journal: what one file may hold, and how damage shows.

A step is a row of first example, number of examples, batch, numbers and a checksum over all of
them, begun with the fingerprint of the run: a row that was changed, or that came from another run,
does not fit. Rows that fit are in range and do not overlap, or they are refused all the same.
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
    """The rules for the rows of one file.

    Attributes:
        run: The fingerprint of the run, as bytes.
        length: The number of examples, if it is known.
        damaged: What was wrong with rows that were left out, by their key.
    """

    run: bytes
    length: int | None = None
    damaged: dict[Any, str] = field(default_factory=dict)

    def row(self, span: Span, batch: int, payload: bytes) -> Stored:
        """Return a step as it is stored."""
        return span.start, span.rows, batch, payload, self._sum(span, batch, payload)

    def steps(self, stored: Iterable[Any]) -> Iterator[tuple[Span, int, bytes]]:
        """Yield the steps in rows that are whole: span, batch, numbers. The others are noted."""
        stop = 0
        for start, rows, batch, payload, crc in stored:
            why = self._wrong(start, rows, batch, payload, crc) or (
                f"it overlaps the row that ends at {stop}" if start < stop else ""
            )
            if why:
                self.damaged[start] = why
                continue
            span = Span(start, rows)
            stop = span.stop
            yield span, batch, payload

    def _wrong(self, start: Any, rows: Any, batch: Any, payload: Any, crc: Any) -> str:
        numbers = start, rows, batch, crc
        if not all(isinstance(x, int) for x in numbers) or not isinstance(payload, bytes):
            return "it holds values of other types"
        if not (start >= 0 and 0 < rows <= batch):
            return f"it is of {rows} examples from {start} on, at a batch of {batch}"
        if self.length is not None and start + rows > self.length:
            return f"it ends at {start + rows} of {self.length} examples"
        if crc != self._sum(Span(start, rows), batch, payload):
            return "its checksum does not fit"
        return ""

    def _sum(self, span: Span, batch: int, payload: bytes) -> int:
        return checksum(self.run, struct.pack("<qqq", span.start, span.rows, batch), payload)


def fact_row(key: str, value: Any) -> tuple[str, str, int]:
    """Return a fact about the run as it is stored: key, value, checksum."""
    text = json.dumps(value)
    return key, text, checksum(key.encode(), text.encode())


def read_facts(stored: Iterable[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the facts in rows that are whole, and the keys of the others."""
    found, damaged = {}, []
    for key, text, crc in stored:
        whole = isinstance(key, str) and isinstance(text, str)
        if whole and crc == checksum(key.encode(), text.encode()):
            found[key] = json.loads(text)
        else:
            damaged.append(str(key))
    return found, damaged

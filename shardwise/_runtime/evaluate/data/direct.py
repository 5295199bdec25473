"""Small steps from memory to a CPU device: read and handed over where they are computed.

To a CPU device there is no way, and an array in memory is not waited for, so threads have nothing
to overlap; handing a step from one to the next takes longer than computing it, if it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..lanes import Lanes
from ..spans import Span
from .source import Source
from .stream import Staged, Stream

SMALL = 1 << 21
"""Bytes of a step up to which it is not worth a thread."""


class Direct(Stream):
    """Steps that are read when they are taken; see `Stream`."""

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""

    def take(self) -> list[Staged]:
        """Return the next steps, one per lane; fewer in the last round, none after it or on
        request."""
        round_: list[Staged] = []
        while len(round_) < len(self._lanes) and not self._asked_to_end():
            span = next(self._spans, None)
            if span is None:
                break
            round_.append(self._put(len(round_), span, self._read_one(span)))
        return round_

    def release(self, steps: int) -> None:
        """No slots are counted: two rounds are under way, and they are small."""

    def _transfer(self, lane: int, span: Span, host: list[Any]) -> Staged:
        if not self._lanes.alone:
            return super()._transfer(lane, span, host)
        return Staged(span, [host])  # the compiled step takes them as they are


def stream(
    source: Source,
    spans: Iterator[Span],
    batch: int,
    lanes: Lanes,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> Stream:
    """Return the way of these steps to these devices: through threads, or none."""
    small = batch * sum(row.size for row in source.rows) <= SMALL
    kind = Direct if small and source.at_hand and lanes.on_host else Stream
    return kind(source, spans, batch, lanes, asked_to_end)

"""Small steps from memory on a CPU device: read by the thread that computes them.

A CPU device needs no transfer and an array in memory needs no wait, so threads have nothing to
overlap; passing a small step between threads takes longer than computing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..lanes import Lanes
from ..spans import Span
from .source import DataSource
from .stream import Staged, StepStream

SMALL = 1 << 21
"""The most bytes of a step that is read without threads."""


class Direct(StepStream):
    """Steps that are read when they are taken; see `StepStream`."""

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: there are no threads."""

    def take(self) -> list[Staged]:
        """Return the next steps, one per lane; fewer in the last round, none at the end."""
        round_: list[Staged] = []
        while len(round_) < len(self._lanes) and not self._asked_to_end():
            span = next(self._spans, None)
            if span is None:
                break
            round_.append(self._put(len(round_), span, self._read_step(span)))
        return round_

    def release(self, steps: int) -> None:
        """Do nothing: at most two small rounds are in flight."""

    def _transfer(self, lane: int, span: Span, host: list[Any]) -> Staged:
        if not self._lanes.alone:
            return super()._transfer(lane, span, host)
        return Staged(span, [host])  # the compiled step takes host arrays


def stream(
    source: DataSource,
    spans: Iterator[Span],
    batch: int,
    lanes: Lanes,
    asked_to_end: Callable[[], bool] = lambda: False,
) -> StepStream:
    """Return the stream for these steps and devices, with threads or without."""
    small = batch * sum(row.size for row in source.rows) <= SMALL
    kind = Direct if small and source.at_hand and lanes.on_host else StepStream
    return kind(source, spans, batch, lanes, asked_to_end)

"""Steps as ranges of examples, numbered from the start of the data whatever the devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..._base.errors import ShardwiseError

_FOREVER = 1 << 62


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """The examples of one step: `rows` of them, from `start` on."""

    start: int
    rows: int

    @property
    def stop(self) -> int:
        return self.start + self.rows

    def __str__(self) -> str:
        return f"examples {self.start} to {self.stop - 1}"


def join(done: list[Span], span: Span) -> None:
    """Add a finished span; adjacent spans are joined, so that the list stays short."""
    if done and done[-1].stop == span.start:
        done[-1] = Span(done[-1].start, done[-1].rows + span.rows)
    else:
        done.append(span)


def cut(done: list[Span], length: int | None, batch: int) -> Iterator[Span]:
    """Yield the remaining steps of `batch` examples: those not in `done`.

    Args:
        done: Finished spans, in any order.
        length: The number of examples; None if it is unknown.
        batch: Examples per step.
    """
    end = _FOREVER if length is None else length
    start = 0
    for span in [*sorted(done), Span(end, 0)]:
        while start < span.start:
            rows = min(batch, span.start - start)
            yield Span(start, rows)
            start += rows
        start = max(start, span.stop)


def computed_twice(span: Span, where: str) -> ShardwiseError:
    """Return the error about a step that two journals have."""
    return ShardwiseError(
        f"two of them have {span}.",
        where=where,
        rule="A step is computed once.",
        remedy="use another path, or delete the journals to start over.",
    )

"""Run staged steps: a round is one call of the program, with one step in every lane.

A round is dispatched as soon as its steps are on the devices, together with the copy of its results
to the host; the host waits for it only when two further rounds are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import numpy as np

from ...._base.errors import note
from ..data.direct import stream as open_stream
from ..data.source import DataSource
from ..data.stream import Staged, StepStream
from ..lanes import Lanes
from ..spans import Span

_BEHIND = 2


def compute(
    step: Any,
    arrays: list[jax.Array],
    source: DataSource,
    spans: Iterator[Span],
    batch: int,
    lanes: Lanes,
    asked_to_end: Callable[[], bool],
) -> Generator[tuple[Span, bytes], None, None]:
    """Run the steps; yield each with its numbers as bytes, in order.

    Args:
        step: The compiled program.
        arrays: The state's arrays.
        source: Where the examples come from.
        spans: The steps, in order.
        batch: Rows of a step, padding included.
        lanes: The devices.
        asked_to_end: Whether to start no further steps; those in flight are finished.
    """
    rows = _Rows(lanes)
    fetching: deque[tuple[list[Span], jax.Array]] = deque()
    with open_stream(source, spans, batch, lanes, asked_to_end) as stream:
        while staged := stream.take():
            fetching.append(_start(step, arrays, staged, rows, lanes, source, batch))
            del staged
            if len(fetching) > _BEHIND:
                yield from _fetch(*fetching.popleft(), stream, source, batch)
        while fetching:
            yield from _fetch(*fetching.popleft(), stream, source, batch)


class _Rows:
    """The number of real rows of each lane, on the devices; cached, since nearly all are full."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._cached: tuple[Any, Any] = (None, None)

    def __call__(self, rows: tuple[int, ...]) -> jax.Array:
        if self._cached[0] != rows:
            array = np.array(rows + (0,) * (len(self._lanes) - len(rows)), np.int32)
            self._cached = rows, jax.device_put(array, self._lanes.split)
        return self._cached[1]


def _start(
    step: Any,
    arrays: list[jax.Array],
    staged: list[Staged],
    rows: _Rows,
    lanes: Lanes,
    source: DataSource,
    batch: int,
) -> tuple[list[Span], jax.Array]:
    spans = [s.span for s in staged]
    parts = [s.copies for s in staged]
    for devices in lanes.devices[len(parts) :]:  # idle lanes repeat a step
        parts.append([jax.device_put(parts[0][0], device) for device in devices])
    guard: Any = nullcontext()
    if isinstance(parts[0][0][0], np.ndarray):  # still on the host: there is only one device
        leaves = parts[0][0]
        guard = jax.transfer_guard_host_to_device("allow")  # as explicit as `device_put`
    else:
        leaves = [
            lanes.join([[copy[k] for copy in part] for part in parts])
            for k in range(len(parts[0][0]))
        ]
    counts = rows(tuple(span.rows for span in spans))
    with _noted(spans, source, batch):  # on some platforms a program runs when it is called
        with guard:
            out = step(arrays, leaves, counts)
        with jax.transfer_guard_device_to_host("allow"):  # as explicit as `device_get`
            out.copy_to_host_async()
    return spans, out


@contextmanager
def _noted(spans: list[Span], source: DataSource, batch: int) -> Iterator[None]:
    """Add the steps to an exception as a note."""
    try:
        yield
    except Exception as error:
        first, last = spans[0].start // batch, spans[-1].start // batch
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        span = Span(spans[0].start, spans[-1].stop - spans[0].start)
        note(error, f"shardwise.evaluate: while computing {steps} ({span}) of {source.label}")
        raise


def _fetch(
    spans: list[Span], out: jax.Array, stream: StepStream, source: DataSource, batch: int
) -> Iterator[tuple[Span, bytes]]:
    with _noted(spans, source, batch), jax.transfer_guard_device_to_host("allow"):
        lanes = np.asarray(out)  # as `device_get` does, which looks for a tree first
    stream.release(len(spans))
    source.release(spans[-1].stop)
    for span, lane in zip(spans, lanes, strict=False):
        yield span, lane.tobytes()

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
from ..data.source import DataSource
from ..data.stream import Staged, StepStream
from ..lanes import Lanes
from ..spans import Span

_BEHIND = 2


class Rounds:
    """Runs the steps of a batch size, a round at a time.

    Args:
        step: The compiled program.
        arrays: The state's arrays.
        source: Where the examples come from.
        batch: Rows of a step, padding included.
        lanes: The devices.
    """

    def __init__(
        self, step: Any, arrays: list[jax.Array], source: DataSource, batch: int, lanes: Lanes
    ) -> None:
        self._step, self._arrays, self._lanes = step, arrays, lanes
        self._source, self._batch = source, batch
        self._rows: tuple[Any, Any] = (None, None)

    def run(
        self, spans: Iterator[Span], asked_to_end: Callable[[], bool]
    ) -> Generator[tuple[Span, bytes], None, None]:
        """Run the steps; yield each with its numbers as bytes, in order.

        Args:
            spans: The steps, in order.
            asked_to_end: Whether to start no further steps; those in flight are finished.
        """
        fetching: deque[tuple[list[Span], jax.Array]] = deque()
        source, lanes = self._source, self._lanes
        with StepStream(source, spans, self._batch, lanes, asked_to_end) as stream:
            while staged := stream.take():
                fetching.append(self._start(staged))
                del staged
                if len(fetching) > _BEHIND:
                    yield from self._fetch(*fetching.popleft(), stream)
            while fetching:
                yield from self._fetch(*fetching.popleft(), stream)

    def _start(self, staged: list[Staged]) -> tuple[list[Span], jax.Array]:
        spans, lanes = [s.span for s in staged], self._lanes
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
        counts = self._counts(tuple(span.rows for span in spans))
        with self._noted(spans):  # on some platforms a program runs when it is called
            with guard:
                out = self._step(self._arrays, leaves, counts)
            with jax.transfer_guard_device_to_host("allow"):  # as explicit as `device_get`
                out.copy_to_host_async()
        return spans, out

    def _counts(self, rows: tuple[int, ...]) -> jax.Array:
        """Return the number of real rows of each lane; cached, since nearly all steps are full."""
        if self._rows[0] != rows:
            array = np.array(rows + (0,) * (len(self._lanes) - len(rows)), np.int32)
            self._rows = rows, jax.device_put(array, self._lanes.split)
        return self._rows[1]

    def _fetch(
        self, spans: list[Span], out: jax.Array, stream: StepStream
    ) -> Iterator[tuple[Span, bytes]]:
        with self._noted(spans), jax.transfer_guard_device_to_host("allow"):
            lanes = np.asarray(out)  # as `device_get` does, which looks for a tree first
        stream.release(len(spans))
        self._source.release(spans[-1].stop)
        for span, lane in zip(spans, lanes, strict=False):
            yield span, lane.tobytes()

    @contextmanager
    def _noted(self, spans: list[Span]) -> Iterator[None]:
        """Add the steps to an exception as a note."""
        try:
            yield
        except Exception as error:
            first, last = spans[0].start // self._batch, spans[-1].start // self._batch
            steps = f"step {first}" if first == last else f"steps {first} to {last}"
            span = Span(spans[0].start, spans[-1].stop - spans[0].start)
            label = self._source.label
            note(error, f"shardwise.evaluate: while computing {steps} ({span}) of {label}")
            raise

"""Reading, padding, transfer and compute, side by side.

One thread reads steps in order. Several threads pad them and transfer them to the device of their
lane; several, because one copy from ordinary memory does not fill the bus
(`benchmarks/evaluate_gpu.py` measures it). The caller's thread takes staged steps in order and
computes. A step occupies a slot from before it is read until its result has been fetched, so memory
on the host and on the devices is bounded by the number of slots, whichever part is slow.

A CPU device needs no transfer and an array in memory needs no wait, so threads have nothing to
overlap, and passing a small step between threads takes longer than computing it: such steps are
read when they are taken, by the caller's thread.

An exception in a thread is raised in the caller's, when it takes that step.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...._base.errors import ShardingError, text_of
from ...._base.numbers import convert, device_dtype
from ..lanes import Lanes
from ..spans import Span
from .source import DataSource, ExampleLeaf, noted

SMALL = 1 << 21
"""The most bytes of a step that is read without threads."""

_JOIN_SECONDS = 10.0
_LEAVE_SECONDS = 1.2  # after a signal
_LOOK_SECONDS = 0.1  # between two checks for a signal


class Unread(Exception):
    """The data could not be read; `error` is the exception of its reader."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(text_of(error))
        self.error = error


@dataclass(frozen=True)
class Staged:
    """A step on the devices of its lane: for each device, the leaves of the batch."""

    span: Span
    copies: list[list[jax.Array]]


@dataclass
class _Step:
    """A step on its way: the lane, the rows to read, and the result; None at the end of the
    data."""

    lane: int
    span: Span
    staged: Future[Staged | None]
    leaves: list[Any]


class StepStream:
    """Reads steps and transfers them to the devices; a context manager. `take` returns a round.

    Args:
        source: Where the examples come from.
        spans: The steps to do, in order; the last may turn out shorter.
        batch: Rows of a step, padding included.
        lanes: The devices.
        asked_to_end: Whether to stop; a slow source is then not waited for.
    """

    def __init__(
        self,
        source: DataSource,
        spans: Iterator[Span],
        batch: int,
        lanes: Lanes,
        asked_to_end: Callable[[], bool],
    ) -> None:
        self._asked_to_end = asked_to_end
        self._source, self._spans, self._batch, self._lanes = source, spans, batch, lanes
        step_bytes = batch * sum(row.size for row in source.rows)
        self._direct = step_bytes <= SMALL and source.at_hand and lanes.on_host
        self._slots = lanes.depth(step_bytes) * len(lanes)
        self._steps: deque[_Step] = deque()
        self._lane = itertools.cycle(range(len(lanes))).__next__
        self._reads: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._transfers: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._stopping = False
        config: Any = jax.config
        self._wide = bool(config.jax_enable_x64)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> StepStream:
        if not self._direct:
            self._start("shardwise-reader", self._reads, self._read)
            for _ in range(self._lanes.transfer_threads):
                self._start("shardwise-transfer", self._transfers, self._transfer)
        return self

    def _start(
        self, name: str, steps: queue.SimpleQueue[_Step | None], work: Callable[[_Step], None]
    ) -> None:
        thread = threading.Thread(target=self._serve, args=(steps, work), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, steps: queue.SimpleQueue[_Step | None], work: Callable[[_Step], None]) -> None:
        # The setting is thread-local, and the copies must have the caller's dtypes.
        with jax.enable_x64(self._wide):
            while (step := steps.get()) is not None and not self._stopping:
                try:
                    work(step)
                except BaseException as error:
                    step.staged.set_exception(error)
                del step

    def __exit__(self, *error: object) -> None:
        """End every thread. One that is stuck in the source is abandoned after a while."""
        self._stopping = True
        self._reads.put(None)
        for _ in range(self._lanes.transfer_threads):
            self._transfers.put(None)
        end = time.monotonic() + (_LEAVE_SECONDS if self._asked_to_end() else _JOIN_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._steps.clear()  # with their memory on the devices

    def take(self) -> list[Staged]:
        """Return the next steps, one per lane; fewer in the last round, none at the end."""
        round_: list[Staged] = []
        while len(round_) < len(self._lanes):
            staged = self._next()
            if staged is None:
                break
            round_.append(staged)
        return [] if self._asked_to_end() else round_

    def _next(self) -> Staged | None:
        """Return the next step; None at the end, or if a signal asks to end."""
        if self._direct:
            span = None if self._asked_to_end() else next(self._spans, None)
            if span is None:
                return None
            return self._put(self._lane(), span, self._read_rows(span))
        self._fill()
        if not self._steps:
            return None
        staged = self._steps[0].staged
        while not staged.done():
            if self._asked_to_end():
                return None
            wait([staged], _LOOK_SECONDS)
        self._steps.popleft()
        return staged.result()

    def _fill(self) -> None:
        """Let steps be read, as many as there are free slots."""
        while self._slots and (span := next(self._spans, None)) is not None:
            self._slots -= 1
            self._steps.append(_Step(self._lane(), span, Future(), []))
            self._reads.put(self._steps[-1])

    def release(self, steps: int) -> None:
        """Release the slots of steps whose results have been fetched."""
        self._slots += steps
        if not self._direct:
            self._fill()

    def _read(self, step: _Step) -> None:
        step.leaves = self._read_rows(step.span)
        self._transfers.put(step)

    def _transfer(self, step: _Step) -> None:
        leaves, step.leaves = step.leaves, []
        span = Span(step.span.start, len(leaves[0]))
        step.staged.set_result(self._put(step.lane, span, leaves) if span.rows else None)

    def _read_rows(self, span: Span) -> list[Any]:
        step = f"reading step {span.start // self._batch} ({span}) from {self._source.label}"
        with self._source.reading:
            if self._source.failure is not None:
                raise Unread(self._source.failure)
            try:
                with noted(step):
                    leaves = self._source.read(span.start, span.stop)
                    self._check(leaves, span)
                    return leaves
            except Exception as error:
                if self._source.on_devices:
                    raise
                self._source.failure = error
                raise Unread(
                    error
                ) from None  # a MemoryError of the reader does not depend on the batch

    def _check(self, leaves: list[Any], span: Span) -> None:
        """Raise if the rows do not have the declared dtype and shape."""
        for row, leaf in zip(self._source.rows, leaves, strict=True):
            if leaf.dtype != row.dtype and not _fits(leaf.dtype, row):
                raise ShardingError(
                    f"its dtype is {row.dtype}, but a slice of it is {leaf.dtype}.",
                    where=row.label,
                    rule="A slice has the dtype of the whole: another one would be converted, with "
                    "possible loss.",
                    remedy=f"set its dtype to {leaf.dtype}, or convert the slices.",
                )
            short = len(leaf) < span.rows and self._source.length is None
            if tuple(leaf.shape[1:]) != row.shape or (len(leaf) != span.rows and not short):
                raise ShardingError(
                    f"a slice of {span.rows} rows has shape {list(leaf.shape)}.",
                    where=row.label,
                    rule=f"A slice is [rows, ...] with rows of shape {list(row.shape)}.",
                    remedy="check its shape and its slices.",
                )

    def _put(self, lane: int, span: Span, leaves: list[Any]) -> Staged:
        step = f"putting step {span.start // self._batch} ({span}) of {self._source.label}"
        with noted(f"{step} on its device"):
            host = [
                fit(leaf, row, self._batch, self._source.rounded)
                for leaf, row in zip(leaves, self._source.rows, strict=True)
            ]
            if self._direct and self._lanes.alone:
                return Staged(span, [host])  # the compiled step takes host arrays
            copies = [jax.device_put(host, device) for device in self._lanes.devices[lane]]
            return Staged(span, jax.block_until_ready(copies))


def _fits(dtype: Any, row: ExampleLeaf) -> bool:
    """Return whether a dtype is that of a leaf, or converts to it without loss."""
    return device_dtype(dtype, row.label) == row.dtype or np.can_cast(dtype, row.dtype, "safe")


def fit(leaf: Any, row: ExampleLeaf, batch: int, rounded: set[str] | None = None) -> Any:
    """Convert rows to the device dtype and pad them to a full batch with the last real row.

    A repeated row is as harmless to `fn` as a real one; a row of zeros might divide by zero.

    Args:
        leaf: The rows.
        row: Their shape and dtype on the device.
        batch: The number of rows of a batch.
        rounded: A set that a leaf whose values lose digits is added to.
    """
    if leaf.dtype != row.dtype:
        leaf = _converted(leaf, row, set() if rounded is None else rounded)
    if len(leaf) == batch:
        return leaf
    join, repeat = (
        (jnp.concatenate, jnp.repeat)
        if isinstance(leaf, jax.Array)
        else (np.concatenate, np.repeat)
    )
    return join([leaf, repeat(leaf[-1:], batch - len(leaf), axis=0)])


def _converted(leaf: np.ndarray, row: ExampleLeaf, rounded: set[str]) -> np.ndarray:
    """Convert rows to the device dtype; raise for overflow, record rounding."""
    converted = convert(leaf, row.dtype, row.label)
    unrecorded = leaf.dtype.kind == "f" and row.label not in rounded
    if unrecorded and np.any((converted != leaf) & np.isfinite(leaf)):
        rounded.add(row.label)
    return converted

"""Reading, padding, transfer and compute, side by side.

One thread reads steps in order. Several threads pad them and transfer them to the device of their
lane; several, because one copy from ordinary memory does not fill the bus
(`benchmarks/evaluate_gpu.py` measures it). The caller's thread takes staged steps in order and
computes. A step occupies a slot from before it is read until its result has been fetched, so memory
on the host and on the devices is bounded by the number of slots, whichever part is slow.

An exception in any thread ends all of them and is raised in the caller's.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
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
        asked_to_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._asked_to_end = asked_to_end
        self._source, self._spans, self._batch, self._lanes = source, spans, batch, lanes
        self._slots = threading.Semaphore(lanes.depth(_step_bytes(source, batch)) * len(lanes))
        self._read: queue.SimpleQueue[tuple[int, Span, list[Any]] | None] = queue.SimpleQueue()
        self._staged: dict[int, Staged] = {}
        self._ended_at: int | None = None
        self._error: BaseException | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._taken = 0
        config: Any = jax.config
        self._wide = bool(config.jax_enable_x64)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> StepStream:
        self._start(self._read_all, "shardwise-reader")
        for _ in range(self._lanes.transfer_threads):
            self._start(self._transfer_all, "shardwise-transfer")
        return self

    def _start(self, work: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def __exit__(self, *_: object) -> None:
        """End every thread. One that is stuck in the source is abandoned after a while."""
        self._stop(None)
        end = time.monotonic() + (_LEAVE_SECONDS if self._asked_to_end() else _JOIN_SECONDS)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._staged.clear()
        self._error = None  # its traceback keeps this object and its device memory alive

    def take(self) -> list[Staged]:
        """Return the next steps, one per lane; fewer in the last round, none at the end."""
        steps = range(self._taken, self._taken + len(self._lanes))
        with self._changed:
            ready = False
            while not ready:
                if self._asked_to_end():
                    return []
                ready = self._changed.wait_for(
                    lambda: self._error or self._is_ready(steps), _LOOK_SECONDS
                )
            if self._error:
                raise self._error
            round_ = [self._staged.pop(k) for k in steps if k in self._staged]
        self._taken += len(round_)
        return round_

    def release(self, steps: int) -> None:
        """Release the slots of steps whose results have been fetched."""
        self._slots.release(steps)

    def _is_ready(self, steps: range) -> bool:
        stop = steps.stop if self._ended_at is None else min(steps.stop, self._ended_at)
        return all(k in self._staged for k in range(steps.start, stop))

    def _stop(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._stopping = True
            self._changed.notify_all()
        self._slots.release(1)
        for _ in range(self._lanes.transfer_threads):
            self._read.put(None)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            # The setting is thread-local, and the copies must have the caller's dtypes.
            with jax.enable_x64(self._wide):
                work()
        except BaseException as error:
            self._stop(error)

    def _read_all(self) -> None:
        number = 0
        for span in self._spans:
            self._slots.acquire()
            if self._stopping:
                return
            leaves = self._read_step(span)
            rows = len(leaves[0])
            if rows:
                self._read.put((number, Span(span.start, rows), leaves))
                number += 1
            if rows < span.rows:
                break
        with self._changed:
            self._ended_at = number
            self._changed.notify_all()

    def _read_step(self, span: Span) -> list[Any]:
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

    def _transfer_all(self) -> None:
        while (item := self._read.get()) is not None and not self._stopping:
            number, span, leaves = item
            del item
            staged = self._put(number % len(self._lanes), span, leaves)
            del leaves
            with self._changed:
                self._staged[number] = staged
                self._changed.notify_all()

    def _put(self, lane: int, span: Span, leaves: list[Any]) -> Staged:
        step = f"putting step {span.start // self._batch} ({span}) of {self._source.label}"
        with noted(f"{step} on its device"):
            host = [
                fit(leaf, row, self._batch, self._source.rounded)
                for leaf, row in zip(leaves, self._source.rows, strict=True)
            ]
            return self._transfer(lane, span, host)

    def _transfer(self, lane: int, span: Span, host: list[Any]) -> Staged:
        copies = [jax.device_put(host, device) for device in self._lanes.devices[lane]]
        return Staged(span, jax.block_until_ready(copies))


def _step_bytes(source: DataSource, batch: int) -> int:
    return batch * sum(row.size for row in source.rows)


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

"""Runs of a solution in the judge's process: limits, pipes, and how they ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from typing import Any

from ..text import visible
from . import wire

PRINTED = 4_000
"""The maximum size in bytes of the printed output to keep."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of one run."""

    seconds: float = 30.0
    """Elapsed seconds."""
    cpu: int = 20
    """CPU seconds."""
    memory: int = 2 << 30
    """Bytes of memory in addition to what JAX itself needs."""
    output: int = 1 << 20
    """The maximum size in bytes of the output, and of each file that it writes."""


@dataclasses.dataclass
class Ran:
    """How a run ended."""

    data: dict[str, Any] | None = None
    """The answer, validated against its schema; None if there is no valid one."""
    late: bool = False
    """Whether it exceeded its limit of elapsed or CPU time."""
    flooded: bool = False
    """Whether it was stopped because it printed too much."""
    skipped: bool = False
    """Whether it was stopped because another run of the file exceeded its time limit."""
    code: int = 0
    """The exit status; negative for a signal."""
    seconds: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    printed: str = ""
    garbled: bool = False
    """Whether it sent an invalid answer."""


@dataclasses.dataclass
class Stream:
    """The reading end of a pipe that a run writes to."""

    file: int
    limit: int
    """The number of bytes after which the run is stopped."""
    got: bytearray = dataclasses.field(default_factory=bytearray)
    open: bool = True

    @property
    def full(self) -> bool:
        """Whether the run wrote more than the limit."""
        return len(self.got) > self.limit

    def read(self) -> None:
        """Read what has arrived."""
        with contextlib.suppress(BlockingIOError):
            while self.open and not self.full:
                more = os.read(self.file, 1 << 16)
                self.open = bool(more)
                self.got += more
        self.open = self.open and not self.full

    def close(self) -> None:
        """Close the reading end."""
        self.open = False
        with contextlib.suppress(OSError):
            os.close(self.file)


@dataclasses.dataclass
class Going:
    """A running process, which executes several runs in sequence."""

    run: int
    index: int
    count: int
    answer: Stream
    printed: Stream
    began: float = dataclasses.field(default_factory=time.monotonic)
    stopped: bool = False
    skipped: bool = False

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """Its answer and its output."""
        return self.answer, self.printed

    def finish(self, line: dict[str, Any], limits: Limits) -> list[Ran]:
        """Return how its runs ended, from the report of the nursery about the process."""
        for stream in self.streams:
            stream.read()
        runs = wire.read(bytes(self.answer.got), self.count) if self.answer.got else None
        code = int(line.get("code", 0))
        spent = code in (-signal.SIGXCPU, -signal.SIGKILL) and line.get("cpu", 0) > limits.cpu - 1
        ran = Ran(
            late=bool(line.get("late")) or spent,
            flooded=self.printed.full,
            skipped=self.skipped and runs is None,
            code=code,
            seconds=time.monotonic() - self.began,
            cpu=float(line.get("cpu", 0.0)),
            memory=int(line.get("memory", 0)),
            printed=self._printed(),
            garbled=runs is None and bool(self.answer.got),
        )
        self.close()
        if runs is None or ran.flooded:
            return [ran] * self.count
        return [dataclasses.replace(ran, data=run, cpu=ran.cpu / self.count) for run in runs]

    def _printed(self) -> str:
        text = visible(self.printed.got[:PRINTED].decode("utf-8", "replace"))
        return text + " ..." * (len(self.printed.got) > PRINTED)

    def close(self) -> None:
        """Close the reading ends of its pipes."""
        for stream in self.streams:
            stream.close()

"""Runs of a solution as the judge sees them: limits, what comes in, how they ended."""

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
"""Bytes of what a solution prints that are kept."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one run may take."""

    seconds: float = 30.0
    """On the clock."""
    cpu: int = 20
    """Seconds of one processor."""
    memory: int = 2 << 30
    """Bytes beyond what JAX takes by itself."""
    output: int = 1 << 20
    """Bytes that it may print, and the size of any file that it writes."""


@dataclasses.dataclass
class Ran:
    """How a run ended."""

    data: dict[str, Any] | None = None
    """The answer, checked against its schema; None if there is none that can be read."""
    late: bool = False
    """Whether it was stopped at its limit of time, on the clock or of computing."""
    flooded: bool = False
    """Whether it was stopped because it printed too much."""
    skipped: bool = False
    """Whether it was not run to its end because another run of the file had no end."""
    code: int = 0
    """The exit status; negative for a signal."""
    seconds: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    printed: str = ""
    garbled: bool = False
    """Whether something came back that is no answer."""


@dataclasses.dataclass
class Stream:
    """What a run writes into a pipe: the reading end is ours alone."""

    file: int
    limit: int
    """Bytes after which the run is stopped."""
    keep: int = 0
    """Bytes that are kept; all up to the limit, if 0."""
    got: bytes = b""
    count: int = 0
    open: bool = True

    @property
    def full(self) -> bool:
        """Whether more was written than may be."""
        return self.count > self.limit

    def read(self) -> None:
        """Take in what is there."""
        with contextlib.suppress(BlockingIOError):
            while self.open and not self.full:
                more = os.read(self.file, 1 << 16)
                self.open = bool(more)
                self.count += len(more)
                if not self.keep or len(self.got) <= self.keep:
                    self.got += more
        self.open = self.open and not self.full

    def close(self) -> None:
        """Close our end."""
        self.open = False
        with contextlib.suppress(OSError):
            os.close(self.file)


@dataclasses.dataclass
class Going:
    """A process under way, with the runs it does one after the other."""

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
        """What it writes."""
        return self.answer, self.printed

    def finish(self, line: dict[str, Any], limits: Limits) -> list[Ran]:
        """Return how its runs ended, given what the nursery reports of the process."""
        for stream in self.streams:
            stream.read()
        runs = wire.read(self.answer.got, self.count) if self.answer.got else None
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
        return text + " ..." * (self.printed.count > PRINTED)

    def close(self) -> None:
        """Close our ends of its pipes."""
        for stream in self.streams:
            stream.close()

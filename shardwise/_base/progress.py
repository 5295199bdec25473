"""The progress of a run: a bar on a terminal, lines in a log, calls of a function, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import refuse_progress

_SECONDS_BETWEEN_DRAWS = 0.1
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Snapshot:
    """The progress of a run.

    Attributes:
        done: Units finished, including those of an interrupted run.
        total: All units, or None if unknown.
        seconds: Seconds since the start.
        rate: Units per second since the first one, which excludes compilation; 0 until a second one
            is finished.
        metrics: The current metrics.
        unit: The unit, such as `examples` or `steps`.
    """

    done: int
    total: int | None
    seconds: float
    rate: float
    metrics: dict[str, Any]
    unit: str = "examples"

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the remaining seconds, or None."""
        if self.total is None or not self.rate:
            return None
        return (self.total - self.done) / self.rate

    def __str__(self) -> str:
        return self.text()

    def text(self, percent: bool = True, width: float = math.inf) -> str:
        """Return it in one line; a bar shows the percentage by itself.

        Metrics beyond the width are left out.
        """
        share = "" if self.total is None else f" of {self.total:,}"
        share += f" ({self.done / self.total:.1%})" if percent and self.total else ""
        remaining = self.seconds_left
        parts = [f"{self.done:,}{share} {self.unit}"]
        parts += [f"{number(self.rate)}/s"] if self.rate else []
        parts += [] if remaining is None else [f"{clock(remaining)} left"]
        line = ", ".join(parts)
        for text in metric_texts(self.metrics):
            if len(f"{line}, {text}") > width:
                break
            line = f"{line}, {text}"
        return line


class ProgressView(Protocol):
    """A display of snapshots; `every` is the least number of seconds between two of them."""

    every: float

    def show(self, snapshot: Snapshot) -> None: ...

    def close(self, finished: bool) -> None: ...


class Progress:
    """Counts finished units and shows snapshots.

    Args:
        view: The display, or None.
        total: The number of units, if known.
        done: The number of units finished before this run.
        values: A function that returns the current metrics.
        unit: The unit.
    """

    def __init__(
        self,
        view: ProgressView | None,
        total: int | None,
        done: int,
        values: Callable[[], dict[str, Any]],
        unit: str = "examples",
    ) -> None:
        self._view, self._total, self._values, self._unit = view, total, values, unit
        self._done = done
        self._began = self._shown = time.monotonic()
        self._first: tuple[int, float] | None = None
        """Count and time after the first unit, which includes compilation."""

    def add(self, count: int) -> None:
        """Count further finished units, and show a snapshot if one is due."""
        self._done += count
        now = time.monotonic()
        if self._first is None and count:
            self._first = self._done, now
        if self._view is not None and now - self._shown >= self._view.every:
            self._shown = now
            self._view.show(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Return the current progress."""
        now = time.monotonic()
        first, since = self._first or (self._done, now)
        rate = (self._done - first) / (now - since) if now > since else 0.0
        return Snapshot(
            self._done, self._total, now - self._began, rate, self._values(), self._unit
        )

    def close(self, finished: bool) -> None:
        if self._view is not None:
            if finished and self._view.every < _SECONDS_BETWEEN_LINES:
                self._view.show(self.snapshot())
            self._view.close(finished)


class Bar:
    """A rich progress bar on standard error."""

    every = _SECONDS_BETWEEN_DRAWS

    def __init__(self, title: str, console: Any = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn(title),
            BarColumn(bar_width=10),
            TextColumn("{task.description}"),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._width_before = len(title) + 12
        """The columns before the text: the title, the bar and two spaces."""
        self._task = self._bar.add_task("starting", total=None)
        self._bar.start()

    def show(self, snapshot: Snapshot) -> None:
        text = snapshot.text(percent=False, width=self._bar.console.width - self._width_before)
        self._bar.update(
            self._task,
            completed=snapshot.done,
            total=snapshot.total,
            description=text.replace("[", r"\["),
        )

    def close(self, finished: bool) -> None:
        self._bar.stop()


class Lines:
    """Plain lines on standard error, one every ten seconds, for logs."""

    every = _SECONDS_BETWEEN_LINES

    def __init__(self, title: str) -> None:
        self._title = title

    def show(self, snapshot: Snapshot) -> None:
        print(f"{self._title}: {snapshot}", file=sys.stderr, flush=True)

    def close(self, finished: bool) -> None:
        pass


class CallbackView:
    """Calls a function of the user with every snapshot."""

    every = _SECONDS_BETWEEN_DRAWS

    def __init__(self, function: Callable[[Snapshot], Any]) -> None:
        self._function = function

    def show(self, snapshot: Snapshot) -> None:
        self._function(snapshot)

    def close(self, finished: bool) -> None:
        pass


def choose_view(
    progress: bool | Callable[[Snapshot], Any] | None, title: str
) -> ProgressView | None:
    """Return the view for the argument `progress`; None for False."""
    refuse_progress(progress, "snapshots")
    if progress is False:
        return None
    if callable(progress):
        return CallbackView(progress)
    return Bar(title) if sys.stderr.isatty() else Lines(title)


def metric_texts(metrics: dict[str, Any], most: int = 4) -> list[str]:
    """Return the first numeric metrics as text: `loss 0.5`."""
    values = [(name, value) for name, value in metrics.items() if isinstance(value, int | float)]
    return [f"{name} {number(value)}" for name, value in values[:most]]


def number(value: float) -> str:
    """Return a number as text, with thousands separators or four significant digits.

    >>> number(94570.3), number(0.0123456), number(3)
    ('94,570', '0.01235', '3')
    """
    if isinstance(value, int) or (1e3 <= abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds: `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

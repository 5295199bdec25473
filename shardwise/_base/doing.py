"""The status line of a long call: one line on a terminal, erased at the end.

Code reports its current activity with `doing("running on {data: 4}")`; a public function shows the
reports with `showing_progress("checking train.py:step")`. Outside of that, `doing` has no effect.
The line appears after half a second and is drawn by a thread, since XLA does not return while it
compiles. Output of the program appears above the line. (`rich.status` holds back output until a
line ends, which would hide a prompt, and has no delay.)
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from .errors import refuse_progress

PATIENCE = 0.5
"""Seconds after which the line is shown."""

BEAT = 1.0
"""Seconds between two updates of the elapsed time."""

Progress = bool | Callable[[str], Any] | None
"""The type of the argument `progress` of `check`, `prove`, `explain` and `inspect`."""

_reporter: ContextVar[Callable[[str], Any] | None] = ContextVar("reporter", default=None)


def doing(activity: str) -> None:
    """Report the current activity."""
    report = _reporter.get()
    if report is not None:
        report(activity)


@contextlib.contextmanager
def showing_progress(title: str, progress: Progress = None) -> Iterator[None]:
    """Show the title and the reports of `doing` while the block runs.

    A nested `showing_progress` shows nothing.

    Args:
        title: The task, such as `checking train.py:step`.
        progress: None shows a line on a terminal only, True also prints lines where there is no
            terminal, False shows nothing. A function is called with each report.
    """
    refuse_progress(progress, "a sentence")
    if progress is False:
        with _reporting_to(None):
            yield
    elif callable(progress):
        with _reporting_to(progress):
            yield
    elif _reporter.get() is not None:
        yield
    elif _is_terminal(sys.stderr):
        with _Line(sys.stderr, title) as line, _reporting_to(line.update):
            yield
    else:
        with _reporting_to(_Lines(title) if progress else None):
            yield


@contextlib.contextmanager
def _reporting_to(report: Callable[[str], Any] | None) -> Iterator[None]:
    previous = _reporter.set(report)
    try:
        yield
    finally:
        _reporter.reset(previous)


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal that can erase a line."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and isatty() and os.environ.get("TERM") != "dumb"


class _Lines:
    """Prints one line for each report, for logs and notebooks."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, ""

    def __call__(self, activity: str) -> None:
        if activity != self._last:
            self._last = activity
            print(f"{self._title}: {activity}", file=sys.stderr, flush=True)


class _Line:
    """The status line, and the thread that draws it."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title, self._activity = stream, title, ""
        self._began = time.monotonic()
        self._width = 0
        """The width of the line on the screen."""
        self._free = True
        """Whether the cursor is at the start of a line."""
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True)

    def __enter__(self) -> _Line:
        self._aside = [_Aside(self, name) for name in ("stdout", "stderr")]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for stream in reversed(self._aside):
            stream.close_aside()
        self._erase()

    def update(self, activity: str) -> None:
        """Set the activity, and redraw the line if it is visible."""
        with self._lock:
            self._activity = activity
            if self._width:
                self._draw()

    def _keep_drawing(self) -> None:
        wait = PATIENCE
        while not self._over.wait(wait):
            wait = BEAT
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        from rich.cells import cell_len, set_cell_size

        if not self._free:
            return
        seconds = round(time.monotonic() - self._began)
        label = f"{self._title}: {self._activity}" if self._activity else self._title
        text, room = f"{label} ({seconds} s)", _columns(self._stream) - 1
        if cell_len(text) > room:
            text = set_cell_size(text, max(room - 1, 0)) + "…"
        self._erase()
        self._width = cell_len(text)
        self._put(text)

    def _erase(self) -> None:
        if self._width:
            self._put("\r" + " " * self._width + "\r")
            self._width = 0

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, UnicodeError):  # the terminal was closed
            self._stream.write(text)
            self._stream.flush()

    def above(self, write: Callable[[str], Any], text: str) -> Any:
        """Write output of the program above the line, which is redrawn once that output ends a
        line."""
        with self._lock:
            self._erase()
            if text:
                self._free = text.endswith("\n")
            return write(text)


class _Aside:
    """A proxy for `sys.stdout` or `sys.stderr` while the line is on the same terminal."""

    def __init__(self, line: _Line, name: str) -> None:
        self._line, self._name, self._wrapped = line, name, getattr(sys, name)
        self._process = os.getpid()
        self._taken = _is_terminal(self._wrapped)
        if self._taken:
            setattr(sys, name, self)

    def write(self, text: str) -> Any:
        if os.getpid() != self._process:  # a fork has no drawing thread
            return self._wrapped.write(text)
        return self._line.above(self._wrapped.write, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close_aside(self) -> None:
        if self._taken and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80

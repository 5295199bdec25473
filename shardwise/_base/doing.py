"""What is going on now, while a call takes long: one line on a terminal, gone when it is done.

Whoever works says what it does, with `doing("running on {data: 4}")`; whoever was called by a
person shows it, with `telling("checking train.py:step")`. Where nobody shows it, it costs nothing.
The line comes after half a second and is drawn by a thread of its own, since XLA does not come back
while it compiles. What a program prints meanwhile stands above the line, whole.
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
"""Seconds between two drawings of the same words: the time it takes is counted."""

Telling = bool | Callable[[str], Any] | None
"""The argument `progress` of what looks at a program."""

_teller: ContextVar[Callable[[str], Any] | None] = ContextVar("teller", default=None)


def doing(what: str) -> None:
    """Say what is going on from now on."""
    tell = _teller.get()
    if tell is not None:
        tell(what)


@contextlib.contextmanager
def telling(title: str, progress: Telling = None) -> Iterator[None]:
    """Show what is going on inside: the title, and what `doing` says.

    Inside another one it leaves the showing to that: nothing is shown twice.

    Args:
        title: What was asked for, such as `checking train.py:step`.
        progress: None is a line on a terminal and nothing elsewhere, True a line for each thing
            that is done where there is no terminal, False nothing. A function is given the words.
    """
    refuse_progress(progress, "a sentence")
    if progress is False:
        with _told(None):
            yield
    elif callable(progress):
        with _told(progress):
            yield
    elif _teller.get() is not None:
        yield
    elif _is_terminal(sys.stderr):
        with _Line(sys.stderr, title) as line, _told(line.tell):
            yield
    else:
        with _told(_Lines(title) if progress else None):
            yield


@contextlib.contextmanager
def _told(tell: Callable[[str], Any] | None) -> Iterator[None]:
    before = _teller.set(tell)
    try:
        yield
    finally:
        _teller.reset(before)


def _is_terminal(stream: Any) -> bool:
    """Return whether a line can be taken back there."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and isatty() and os.environ.get("TERM") != "dumb"


class _Lines:
    """One line for each thing that is done: made for logs and notebooks."""

    def __init__(self, title: str) -> None:
        self._title, self._last = title, ""

    def __call__(self, what: str) -> None:
        if what != self._last:
            self._last = what
            print(f"{self._title}: {what}", file=sys.stderr, flush=True)


class _Line:
    """The one line, and the thread that draws it."""

    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream, self._title, self._what = stream, title, ""
        self._began = time.monotonic()
        self._width = 0
        """How many columns are drawn now."""
        self._free = True
        """Whether the cursor stands at the start of a line."""
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

    def tell(self, what: str) -> None:
        """Show other words, if anything is shown by now."""
        with self._lock:
            self._what = what
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
        what = f"{self._title}: {self._what}" if self._what else self._title
        text, room = f"{what} ({seconds} s)", _columns(self._stream) - 1
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
        with contextlib.suppress(OSError, ValueError, UnicodeError):  # the terminal went away
            self._stream.write(text)
            self._stream.flush()

    def above(self, write: Callable[[str], Any], text: str) -> Any:
        """Write what a program prints: the line makes room, and waits until its line has ended."""
        with self._lock:
            self._erase()
            if text:
                self._free = text.endswith("\n")
            return write(text)


class _Aside:
    """A stream of `sys` while the line is shown on the same terminal; in all else that stream."""

    def __init__(self, line: _Line, name: str) -> None:
        self._line, self._name, self._own = line, name, getattr(sys, name)
        self._process = os.getpid()
        self._taken = _is_terminal(self._own)
        if self._taken:
            setattr(sys, name, self)

    def write(self, text: str) -> Any:
        if os.getpid() != self._process:  # a fork: the thread and its lock stayed behind
            return self._own.write(text)
        return self._line.above(self._own.write, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def close_aside(self) -> None:
        if self._taken and getattr(sys, self._name) is self:
            setattr(sys, self._name, self._own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80

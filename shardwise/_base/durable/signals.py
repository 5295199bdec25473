"""Handle SIGINT and SIGTERM during a run: record them at once, act on them between two steps.

A signal must not interrupt a step, but it must interrupt a wait. So a run either defers signals and
reads `signum` after each step, or is inside `at_once()`, where a signal raises what Python would
have raised. In both cases `signum` stays set, so that an exception swallowed by a library's
callback is not lost.

A second Ctrl-C ends the process at once. Python runs its handlers between two instructions of the
main thread, which may be inside the compiler for a minute. So a thread reads the byte that the
interpreter writes to the wakeup pipe when the signal arrives.

While XLA compiles, nothing is raised, even inside `at_once()`: JAX would return from its wait for
the compiler, which goes on in another thread, and a process that exits meanwhile destroys the
devices it uses (jaxlib 0.10 then crashes with a segmentation fault).

Only Python's default handlers are replaced. Outside the main thread, and if other code handles
signals already, nothing is changed.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from ..errors import interrupted

GRACE = 1.0
"""Seconds in which a wait under `at_once(later=True)` may end by itself."""
PATIENCE = 2.0
"""Seconds after which a line reports what is being waited for."""
_ECHO = 0.3  # a terminal and a launcher may both deliver the same Ctrl-C

_DEFERRED, _LATER, _AT_ONCE = range(3)


class Signals:
    """The signals of one run.

    Attributes:
        signum: The signal that requested the end of the run, if any.
        nested: Whether an enclosing run will report what was saved.
        compiling: Whether the signal arrived while XLA compiled.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.nested = False
        self.compiling = False
        self._mode = _DEFERRED
        self._grace_over = False

    @property
    def name(self) -> str:
        """Return the name of the signal, such as `SIGTERM`."""
        return "" if self.signum is None else signal.Signals(self.signum).name

    @contextmanager
    def at_once(self, *, later: bool = False) -> Iterator[None]:
        """Return a context in which a signal raises; with `later`, only after a grace period."""
        mode, self._mode = self._mode, _LATER if later else _AT_ONCE
        try:
            self.check()
            yield
        finally:
            self._mode = mode

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Return a context in which a signal is only recorded."""
        mode, self._mode = self._mode, _DEFERRED
        try:
            yield
        finally:
            self._mode = mode

    def check(self) -> None:
        """Raise if a signal has arrived."""
        if self.signum is not None:
            self.end()

    def end(self, line: str = "") -> NoReturn:
        """Report what was saved, and raise `KeyboardInterrupt` or `SystemExit`."""
        assert self.signum is not None
        reported = bool(line) and not self.nested
        if reported:
            print(line, file=sys.stderr, flush=True)
        if self.signum == signal.SIGINT:
            raise (interrupted(line) if reported else KeyboardInterrupt()) from None
        raise SystemExit(128 + self.signum) from None

    def handle(self, signum: int, frame: Any) -> None:
        """Handle a signal: Python calls this in the main thread."""
        pressed, self._grace_over = self._grace_over, False
        repeated = self.signum is not None and not pressed
        if self.signum is None:
            self.signum = signum
        self.compiling = is_compiling(frame)
        if _is_swallowing(frame) or (self.compiling and not _interactive()):
            return  # `press` will repeat the signal
        impatient = repeated and signum == signal.SIGINT and _interactive()
        if self._mode == _AT_ONCE or (pressed and self._mode == _LATER) or impatient:
            self.end()

    def press(self) -> None:
        """Run the handler in the main thread again, after the grace period of a wait."""
        assert self.signum is not None
        self._grace_over = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, self.signum)


def _is_swallowing(frame: Any) -> bool:
    """Return whether an exception raised here would be lost.

    Python prints and ignores an exception in a callback of the garbage collector, such as JAX's,
    and in a destructor; an extension module that is being loaded may turn it into another error.
    """
    callbacks = [getattr(function, "__code__", None) for function in gc.callbacks]
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code in callbacks or code.co_name == "__del__" or module in _WEAK:
            return True
        if code.co_qualname.startswith("ExtensionFileLoader."):
            return True
        frame = frame.f_back
    return False


_WEAK = ("weakref", "_weakrefset")  # where the callbacks of weak containers are


COMPILERS: set[str] = set()
"""Modules whose functions wait for a compiler; `_jax` adds JAX's."""


def is_compiling(frame: Any) -> bool:
    """Return whether the innermost frame waits for a compiler."""
    return getattr(frame, "f_globals", {}).get("__name__") in COMPILERS


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


class _Watch:
    """The wakeup pipe, and the thread that reads it."""

    def __init__(self, signals: Signals, title: str) -> None:
        self._signals, self._title = signals, title
        self._pressed = 0  # signals sent by `press`
        self._waiting: threading.Thread | None = None
        self._over = threading.Event()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._thread = threading.Thread(target=self._read, name="shardwise-signals", daemon=True)

    def start(self) -> bool:
        """Start the thread; return False if other code has set a wakeup pipe."""
        previous = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        if previous != -1:
            signal.set_wakeup_fd(previous)
            self._close()
            return False
        self._thread.start()
        return True

    def stop(self) -> None:
        signal.set_wakeup_fd(-1)
        self._over.set()
        with suppress(OSError):
            os.write(self._writing, b"\0")
        self._thread.join()
        if self._waiting is not None:
            self._waiting.join()
        self._close()

    def _close(self) -> None:
        os.close(self._reading)
        os.close(self._writing)

    def _read(self) -> None:
        first = 0.0
        while not self._over.is_set():
            for number in os.read(self._reading, 64):
                if number not in _HANDLED or self._over.is_set():
                    continue
                if not first:
                    first = time.monotonic()
                    self._waiting = threading.Thread(target=self._wait, args=(number,), daemon=True)
                    self._waiting.start()
                elif self._pressed:
                    self._pressed -= 1
                elif number == signal.SIGINT and time.monotonic() - first > _ECHO:
                    self._again(number)

    def _wait(self, number: int) -> None:
        """Repeat the signal until the run ends.

        On a busy machine the main thread may not even have run its handler yet.
        """
        if self._over.wait(GRACE):
            return
        for attempt in itertools.count():
            if self._signals.signum is not None and not self._pressed:
                self._pressed += 1
                self._signals.press()
            if self._over.wait(PATIENCE - GRACE):
                return
            if attempt == 0:
                name = signal.Signals(number).name
                last = "the compilation" if self._signals.compiling else "the step"
                print(
                    f"{self._title}: {name}: it ends after {last} under way, and saves first; "
                    "press Ctrl-C again to end it at once.",
                    file=sys.stderr,
                    flush=True,
                )

    def _again(self, number: int) -> None:
        """End the process, unless it is an interactive session."""
        if not _interactive():
            print(f"{self._title}: ended at once, without saving.", file=sys.stderr, flush=True)
            os._exit(128 + number)


_HANDLED = (signal.SIGINT, signal.SIGTERM)
_current: Signals | None = None
_before: dict[int, Any] = {}


@contextmanager
def listen(title: str) -> Iterator[Signals]:
    """Handle the signals of a run. A nested run shares those of the outer one, deferred at first.

    Args:
        title: The name of the run in messages.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    global _current
    if _current is not None:
        outer, nested = _current, _current.nested
        outer.nested = True
        try:
            with outer.deferred():
                yield outer
        finally:
            outer.nested = nested
        return
    _current = Signals()
    for number in _HANDLED:
        if _is_default(number, signal.getsignal(number)):
            _before[number] = signal.signal(number, _current.handle)
    watch = _Watch(_current, title) if _before else None
    if watch is not None and not watch.start():
        watch = None
    try:
        yield _current
    finally:
        if watch is not None:
            watch.stop()
        _restore()


@contextmanager
def stand_in(signals: Signals) -> Iterator[None]:
    """Make runs inside share these signals and install no handlers.

    Args:
        signals: The caller sets their `signum`.
    """
    global _current
    previous, _current = _current, signals
    try:
        yield
    finally:
        _current = previous


def _is_default(number: int, handler: Any) -> bool:
    """Return whether a handler is Python's default, or was installed by a C library."""
    if number == signal.SIGINT:
        return handler is signal.default_int_handler or handler == _patience.handle
    return handler is signal.SIG_DFL or handler is None


class _Patience:
    """Ctrl-C outside of runs: Python's behaviour, but delayed while XLA compiles or the exception
    would be swallowed."""

    def __init__(self) -> None:
        self._first = 0.0
        self._repeating = False

    def handle(self, signum: int, frame: Any) -> None:
        """Handle Ctrl-C, or its repetition by `_repeat`: Python calls this in the main thread."""
        if not (is_compiling(frame) or _is_swallowing(frame)):
            self._first, self._repeating = 0.0, False
            signal.default_int_handler(signum, frame)
        now = time.monotonic()
        self._first = self._first or now
        if not self._repeating:
            self._repeating = True
            timer = threading.Timer(_ECHO / 3, self._repeat)
            timer.daemon = True
            timer.start()
        elif now - self._first > _ECHO:
            print("interrupted", file=sys.stderr, flush=True)
            os._exit(128 + signum)

    def _repeat(self) -> None:
        main = threading.main_thread().ident
        if self._repeating and main is not None:
            self._repeating = False
            signal.pthread_kill(main, signal.SIGINT)


_patience = _Patience()


def wait_for_compiler(before: Any = signal.default_int_handler) -> None:
    """Make Ctrl-C outside of runs wait for XLA from now on; a second one does not wait.

    Args:
        before: The handler that may be replaced.
    """
    if signal.getsignal(signal.SIGINT) is before:
        signal.signal(signal.SIGINT, _patience.handle)


def _restore() -> None:
    global _current
    _current = None
    while _before:
        number, handler = _before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


_masks = threading.local()


def _before_fork() -> None:
    """Block signals: Python loses one that reaches a child before it is set up."""
    _masks.blocked = None
    if _current is not None:
        _masks.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)


def _after_fork() -> None:
    mask = getattr(_masks, "blocked", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """Restore the default handlers in a forked worker."""
    if _current is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            _restore()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)

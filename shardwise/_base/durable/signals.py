"""SIGINT and SIGTERM while a run is under way: noted at once, answered at a good moment, not lost.

A signal that arrives in the middle of a step must not tear it apart, and one that arrives in the
middle of a wait must not be waited out. So a run is either *held*, and looks at `signum` after each
step, or inside `at_once()`, where the signal raises what Python would have raised. Either way
`signum` stays set: an exception that some callback of a library swallowed is not lost.

A second Ctrl-C ends at once. Python runs its handlers between two instructions of the main thread,
which may sit in a compiler for a minute; the kernel's own note of a signal, a byte in a pipe, is
read by a thread of ours that waits for nobody.

While XLA compiles nothing is raised either, not even `at_once()`: JAX would leave the wait for its
compiler, which goes on in a thread of its own, and a process that ends meanwhile takes the devices
away from under it (jaxlib 0.10 then dies of a segmentation fault; ending never was any faster).

Only handlers that are Python's own are replaced. Outside the main thread, or where somebody else
handles signals already, everything is as it would be without this file.
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
"""Seconds that a wait which should not be broken off is given to end by itself."""
PATIENCE = 2.0
"""Seconds after which a line says what is being waited for."""
_ECHO = 0.3  # a terminal and a launcher may both deliver one Ctrl-C

_HELD, _LATER, _AT_ONCE = range(3)


class Signals:
    """The signals of one run.

    Attributes:
        signum: The signal that has asked the run to end, if one has.
        nested: Whether a run around this one will say what was saved.
        compiling: Whether the signal came while XLA compiled.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.nested = False
        self.compiling = False
        self._mode = _HELD
        self._grace_over = False

    @property
    def name(self) -> str:
        """The name of the signal, such as `SIGTERM`."""
        return "" if self.signum is None else signal.Signals(self.signum).name

    @contextmanager
    def at_once(self, *, later: bool = False) -> Iterator[None]:
        """Inside, a signal raises; with `later`, only if the wait does not end by itself soon."""
        mode, self._mode = self._mode, _LATER if later else _AT_ONCE
        try:
            self.check()
            yield
        finally:
            self._mode = mode

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, a signal is noted and nothing more."""
        mode, self._mode = self._mode, _HELD
        try:
            yield
        finally:
            self._mode = mode

    def check(self) -> None:
        """Raise if a signal has come."""
        if self.signum is not None:
            self.end()

    def end(self, line: str = "") -> NoReturn:
        """Say what was saved and raise what the signal stands for."""
        assert self.signum is not None
        reported = bool(line) and not self.nested
        if reported:
            print(line, file=sys.stderr, flush=True)
        # What was going on when the signal came is of no interest to whoever sent it.
        if self.signum == signal.SIGINT:
            raise (interrupted(line) if reported else KeyboardInterrupt()) from None
        raise SystemExit(128 + self.signum) from None

    def handle(self, signum: int, frame: Any) -> None:
        """What Python calls in the main thread."""
        pressed, self._grace_over = self._grace_over, False
        repeated = self.signum is not None and not pressed
        if self.signum is None:
            self.signum = signum
        self.compiling = is_compiling(frame)
        if _is_swallowing(frame) or (self.compiling and not _interactive()):
            return  # the grace will be over soon, and again
        impatient = repeated and signum == signal.SIGINT and _interactive()
        if self._mode == _AT_ONCE or (pressed and self._mode == _LATER) or impatient:
            self.end()

    def press(self) -> None:
        """The grace of a wait is over: have the handler run in the main thread again."""
        assert self.signum is not None
        self._grace_over = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, self.signum)


def _is_swallowing(frame: Any) -> bool:
    """Return whether an exception raised here would be lost.

    Python prints it and goes on, as in a callback that JAX has, or an extension that is being
    loaded makes another error of it, as NumPy's do.
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


def is_compiling(frame: Any) -> bool:
    """Return whether Python waits for XLA in this frame, the innermost: JAX calls it from one
    module.

    By its name: nothing here may import JAX, which this has to answer for while JAX starts.
    """
    return getattr(frame, "f_globals", {}).get("__name__") == "jax._src.compiler"


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


class _Watch:
    """The thread that reads the kernel's notes, and the pipe it reads them from."""

    def __init__(self, signals: Signals, title: str) -> None:
        self._signals, self._title = signals, title
        self._own = 0  # signals that we sent ourselves
        self._waiting: threading.Thread | None = None
        self._over = threading.Event()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._thread = threading.Thread(target=self._read, name="shardwise-signals", daemon=True)

    def start(self) -> bool:
        """False, and nothing started, if somebody else reads these notes already."""
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
                if number not in _TAKEN or self._over.is_set():
                    continue
                if not first:
                    first = time.monotonic()
                    self._waiting = threading.Thread(target=self._wait, args=(number,), daemon=True)
                    self._waiting.start()
                elif self._own:
                    self._own -= 1
                elif number == signal.SIGINT and time.monotonic() - first > _ECHO:
                    self._again(number)

    def _wait(self, number: int) -> None:
        """Answer for a run that does not answer by itself.

        More than once: on a busy machine the main thread may not even have run its handler yet.
        """
        if self._over.wait(GRACE):
            return
        for attempt in itertools.count():
            if self._signals.signum is not None and not self._own:
                self._own += 1
                self._signals.press()
            if self._over.wait(PATIENCE - GRACE):
                return
            if attempt == 0:
                name = signal.Signals(number).name
                last = "the compilation" if self._signals.compiling else "the step"
                print(
                    f"{self._title}: {name}: it ends after {last} under way, and saves first; "
                    "Ctrl-C again ends it at once.",
                    file=sys.stderr,
                    flush=True,
                )

    def _again(self, number: int) -> None:
        """End the process, unless somebody has more in it than this run."""
        if not _interactive():
            print(f"{self._title}: ended at once, without saving.", file=sys.stderr, flush=True)
            os._exit(128 + number)


_TAKEN = (signal.SIGINT, signal.SIGTERM)
_current: Signals | None = None
_before: dict[int, Any] = {}


@contextmanager
def listen(title: str) -> Iterator[Signals]:
    """Take the signals for a run; one inside another shares them, held until it says otherwise.

    Args:
        title: What the run is called in messages.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    global _current
    if _current is not None:
        outer, nested = _current, _current.nested
        outer.nested = True
        try:
            with outer.held():
                yield outer
        finally:
            outer.nested = nested
        return
    _current = Signals()
    for number in _TAKEN:
        if _is_pythons(number, signal.getsignal(number)):
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
    """Signals that somebody else hears: runs inside share them, and install nothing.

    Args:
        signals: Whoever hears them sets its `signum`.
    """
    global _current
    previous, _current = _current, signals
    try:
        yield
    finally:
        _current = previous


def _is_pythons(number: int, handler: Any) -> bool:
    """Return whether a handler is the default one of Python, or of a library in C."""
    if number == signal.SIGINT:
        return handler is signal.default_int_handler or handler == _patience.handle
    return handler is signal.SIG_DFL or handler is None


class _Patience:
    """Ctrl-C where no run is under way: as Python has it, once XLA has compiled.

    And where what is raised counts: in a callback that swallows it, it would be lost.
    """

    def __init__(self) -> None:
        self._first = 0.0
        self._asking = False

    def handle(self, signum: int, frame: Any) -> None:
        """What Python calls in the main thread: for a user, and for ourselves a little later."""
        if not (is_compiling(frame) or _is_swallowing(frame)):
            self._first, self._asking = 0.0, False
            signal.default_int_handler(signum, frame)
        now = time.monotonic()
        self._first = self._first or now
        if not self._asking:
            self._asking = True
            timer = threading.Timer(_ECHO / 3, self._ask)
            timer.daemon = True
            timer.start()
        elif now - self._first > _ECHO:
            print("interrupted", file=sys.stderr, flush=True)
            os._exit(128 + signum)

    def _ask(self) -> None:
        main = threading.main_thread().ident
        if self._asking and main is not None:
            self._asking = False
            signal.pthread_kill(main, signal.SIGINT)


_patience = _Patience()


def wait_for_compiler(before: Any = signal.default_int_handler) -> None:
    """Have Ctrl-C wait for XLA from now on, outside of runs too; a second one does not wait.

    Args:
        before: The handler that this one may take the place of.
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
    """From here on signals wait: Python forgets one that reaches a child before it is set up."""
    _masks.kept = None
    if _current is not None:
        _masks.kept = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)


def _after_fork() -> None:
    mask = getattr(_masks, "kept", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """A worker that was forked answers signals as if no run were under way."""
    if _current is not None:
        with suppress(ValueError):
            signal.set_wakeup_fd(-1)
            _restore()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)

"""Signals under `jax.distributed`: Ctrl-C while it joins, and SIGTERM once it has.

JAX waits for the others in C++, where Python does not handle Ctrl-C: `interrupted_at_once`.

JAX's preemption notifier handles SIGTERM once processes have joined, so a script that never queries
it ignores the signal. `keep_notifier` stores it and restores the previous handler; `listening`
installs it around a loop that queries it at every step.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from typing import Any

_notifier: Any = None
_heard: int | None = None


def keep_notifier(before: Any) -> None:
    """Store JAX's handler, and restore the one before it."""
    global _notifier
    _notifier = _action()
    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once while the block waits in C++.

    Python would raise KeyboardInterrupt only after the wait, minutes later. Nothing has to be saved
    yet. A handler of the script is kept.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def listening() -> Iterator[bool]:
    """Let JAX handle SIGTERM and Ctrl-C in the block; yield whether it does."""
    if _notifier is None or threading.current_thread() is not threading.main_thread():
        yield False
        return
    terminate, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    ctypes.CDLL(None).sigaction(signal.SIGTERM, _notifier, None)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield True
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, interrupt)


def _interrupt(number: int, _: Any) -> None:
    """Treat Ctrl-C like SIGTERM, except for the exit code."""
    global _heard
    _heard = number
    signal.raise_signal(signal.SIGTERM)


def heard() -> int | None:
    """Return the number of SIGINT if this process received it."""
    return _heard


def reached(step: int) -> bool:
    """Return whether all processes end after this step, because one received a signal."""
    from jax.experimental import multihost_utils

    return _notifier is not None and multihost_utils.reached_preemption_sync_point(step)


def _action() -> Any:
    """Return the kernel's sigaction for SIGTERM as opaque bytes: Python cannot read a C handler."""
    buffer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).sigaction(signal.SIGTERM, None, buffer):
        return None
    return buffer

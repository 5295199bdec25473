"""SIGTERM under `jax.distributed`: JAX catches it, and tells nobody who does not ask.

JAX's preemption notifier takes SIGTERM over when processes join, so that a script that never asks
it cannot be ended politely. `keep_notifier` puts it aside and gives the signal back; `listening`
puts it in place again around a loop that asks at every step.
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
    """Put JAX's handler aside, and that which was there before back in place."""
    global _notifier
    _notifier = _action()
    signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def listening() -> Iterator[bool]:
    """Let JAX hear SIGTERM, and Ctrl-C as well; gives whether it does."""
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
    """Ctrl-C asks for the same as SIGTERM; only the exit code differs."""
    global _heard
    _heard = number
    signal.raise_signal(signal.SIGTERM)


def heard() -> int | None:
    """The signal that this process was sent, if it was Ctrl-C."""
    return _heard


def reached(step: int) -> bool:
    """Whether some process was told to end, and all of them do so after this step."""
    from jax.experimental import multihost_utils

    return _notifier is not None and multihost_utils.reached_preemption_sync_point(step)


def _action() -> Any:
    """What the kernel holds for SIGTERM, as opaque bytes: no C handler can be had from Python."""
    held = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).sigaction(signal.SIGTERM, None, held):
        return None
    return held

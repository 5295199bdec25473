"""Signals under `jax.distributed`: Ctrl-C while it joins, and SIGTERM once it has.

JAX waits for the others outside Python, where Python answers no Ctrl-C: `interrupted_at_once`.

JAX's preemption notifier takes SIGTERM over when processes join, and tells nobody who does not
ask: a script that never asks cannot be ended politely. `keep_notifier` puts it aside and gives the
signal back; `listening` puts it in place again around a loop that asks at every step.
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
def interrupted_at_once() -> Iterator[None]:
    """Around a wait outside Python: Ctrl-C ends the process, as SIGTERM does there.

    Python would raise KeyboardInterrupt only after the wait, minutes later. Nothing has begun yet
    that would have to be saved. A handler of the script's own stays.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """Return the signal that this process was sent, if it was Ctrl-C."""
    return _heard


def reached(step: int) -> bool:
    """Return whether some process was told to end, and all of them do so after this step."""
    from jax.experimental import multihost_utils

    return _notifier is not None and multihost_utils.reached_preemption_sync_point(step)


def _action() -> Any:
    """Return what the kernel holds for SIGTERM, as opaque bytes: no C handler can be had from
    Python."""
    held = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).sigaction(signal.SIGTERM, None, held):
        return None
    return held

"""Work that is counted and has an end, which is the same on any machine; and a last one in time."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import time
from collections.abc import Iterator


class TooMuch(Exception):
    """More work than was allowed."""


@dataclasses.dataclass
class Left:
    """The work that is left for several things together."""

    work: int


_LEFT: contextvars.ContextVar[Left | None] = contextvars.ContextVar("left", default=None)


@contextlib.contextmanager
def at_most(work: int, of: Left | None = None) -> Iterator[None]:
    """So much work within, and no more than is left `of` what it is a part of: `TooMuch` then."""
    given = work if of is None else min(work, of.work)
    own = Left(given)
    token = _LEFT.set(own)
    try:
        yield
    finally:
        _LEFT.reset(token)
        if of is not None:
            of.work -= given - max(own.work, 0)


_UNTIL: contextvars.ContextVar[float | None] = contextvars.ContextVar("until", default=None)

OFTEN = 4096
"""The clock is looked at whenever so much work more is done."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """So much time within: `TooMuch` in work that is counted, once it is over.

    This is the last resort for machines so slow that counted work takes too long.
    """
    token = _UNTIL.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def late() -> bool:
    """Whether the time is over."""
    until = _UNTIL.get()
    return until is not None and time.monotonic() > until


def spend(work: int) -> None:
    """Count work, where it has an end."""
    left = _LEFT.get()
    if left is not None:
        before = left.work // OFTEN
        left.work -= work
        if left.work < 0 or (left.work // OFTEN != before and late()):
            raise TooMuch

"""Limits on work, counted in operations and so equal on any machine; and a limit on time."""

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
    """The remaining work that several computations share."""

    work: int


_LEFT: contextvars.ContextVar[Left | None] = contextvars.ContextVar("left", default=None)


@contextlib.contextmanager
def at_most(work: int, of: Left | None = None) -> Iterator[None]:
    """Raise `TooMuch` after this much work inside, or more than is left `of` the shared budget."""
    limit = work if of is None else min(work, of.work)
    budget = Left(limit)
    token = _LEFT.set(budget)
    try:
        yield
    finally:
        _LEFT.reset(token)
        if of is not None:
            of.work -= limit - max(budget.work, 0)


_UNTIL: contextvars.ContextVar[float | None] = contextvars.ContextVar("until", default=None)

OFTEN = 4096
"""The amount of work between two looks at the clock."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TooMuch` from counted work inside once the time is over.

    This is the last resort for machines so slow that counted work takes too long.
    """
    token = _UNTIL.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def late() -> bool:
    """Return whether the time is over."""
    until = _UNTIL.get()
    return until is not None and time.monotonic() > until


def spend(work: int) -> None:
    """Count work, if a limit is set."""
    budget = _LEFT.get()
    if budget is not None:
        before = budget.work // OFTEN
        budget.work -= work
        if budget.work < 0 or (budget.work // OFTEN != before and late()):
            raise TooMuch

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


class TooLate(Exception):
    """A step was not begun, because it would not end before the deadline."""


@dataclasses.dataclass
class Deadline:
    """A point in time, and the longest step so far that could not be interrupted."""

    at: float
    longest: float = 0.0


_DEADLINE: contextvars.ContextVar[Deadline | None] = contextvars.ContextVar(
    "deadline", default=None
)

OFTEN = 4096
"""The amount of work between two looks at the clock."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Set the deadline: counted work inside then raises `TooMuch`, and a `step` `TooLate`."""
    token = _DEADLINE.set(Deadline(time.monotonic() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def late() -> bool:
    """Return whether the time is over."""
    deadline = _DEADLINE.get()
    return deadline is not None and time.monotonic() > deadline.at


def remaining() -> float:
    """Return the seconds until the deadline."""
    deadline = _DEADLINE.get()
    return float("inf") if deadline is None else deadline.at - time.monotonic()


@contextlib.contextmanager
def step() -> Iterator[None]:
    """Run what cannot be interrupted, such as compiling; raise `TooLate` if it would end too late.

    It is expected to take as long as the longest step so far.
    """
    deadline, began = _DEADLINE.get(), time.monotonic()
    if deadline is not None and began + deadline.longest > deadline.at:
        raise TooLate
    yield
    if deadline is not None:
        deadline.longest = max(deadline.longest, time.monotonic() - began)


def spend(work: int) -> None:
    """Count work, if a limit is set."""
    budget = _LEFT.get()
    if budget is not None:
        before = budget.work // OFTEN
        budget.work -= work
        if budget.work < 0 or (budget.work // OFTEN != before and late()):
            raise TooMuch

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
def at_most(work: int, of: Left | None = None) -> Iterator[Left]:
    """Raise `TooMuch` after this much work inside, or more than is left `of` the shared budget.

    It also counts as work of a limit around this one, of which no more than is left is allowed.
    """
    shared = [other for other in (of, _LEFT.get()) if other is not None]
    limit = min([work, *(other.work for other in shared)])
    budget = Left(limit)
    token = _LEFT.set(budget)
    try:
        yield budget
    finally:
        _LEFT.reset(token)
        for other in shared:
            other.work -= limit - max(budget.work, 0)


class TooLate(Exception):
    """The deadline passed, or a step was not begun because it would not end before it."""


@dataclasses.dataclass
class Deadline:
    """A point in time, and the longest step so far that could not be interrupted."""

    at: float
    longest: float = 0.0
    counted: int = 0
    """The work since the last look at the clock."""


_DEADLINE: contextvars.ContextVar[Deadline | None] = contextvars.ContextVar(
    "deadline", default=None
)

OFTEN = 4096
"""The amount of work between two looks at the clock."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Set the deadline, after which counted work and a `step` inside raise `TooLate`."""
    token = _DEADLINE.set(Deadline(time.monotonic() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


@contextlib.contextmanager
def extended(seconds: float) -> Iterator[None]:
    """Move the deadline, if there is one, for what is inside."""
    deadline = _DEADLINE.get() or Deadline(float("inf"))
    deadline.at += seconds
    try:
        yield
    finally:
        deadline.at -= seconds


def late() -> bool:
    """Return whether the time is over."""
    deadline = _DEADLINE.get()
    return deadline is not None and time.monotonic() > deadline.at


def in_time() -> None:
    """Raise `TooLate` if the time is over."""
    if late():
        raise TooLate


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
    """Count work, if a limit is set: on it, or on time."""
    budget, deadline = _LEFT.get(), _DEADLINE.get()
    if budget is not None:
        budget.work -= work
        if budget.work < 0:
            raise TooMuch
    if deadline is not None:
        deadline.counted += work
        if deadline.counted >= OFTEN:
            deadline.counted = 0
            in_time()

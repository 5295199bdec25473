"""Work that is counted and has an end, which is the same on any machine."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
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


def spend(work: int) -> None:
    """Count work, where it has an end."""
    left = _LEFT.get()
    if left is not None:
        left.work -= work
        if left.work < 0:
            raise TooMuch

"""Work that is counted and has an end, which is the same on any machine."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator


class TooMuch(Exception):
    """More work than was allowed."""


@dataclasses.dataclass
class _Left:
    work: int


_LEFT: contextvars.ContextVar[_Left | None] = contextvars.ContextVar("left", default=None)


@contextlib.contextmanager
def at_most(work: int) -> Iterator[None]:
    """So much work within; more raises `TooMuch`."""
    token = _LEFT.set(_Left(work))
    try:
        yield
    finally:
        _LEFT.reset(token)


def spend(work: int) -> None:
    """Count work, where it has an end."""
    left = _LEFT.get()
    if left is not None:
        left.work -= work
        if left.work < 0:
            raise TooMuch

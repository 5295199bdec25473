"""Switches of the passes: which of them are off, for a measurement or to find a fault."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_OFF: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("off", default=frozenset())


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Return a context in which programs are lowered without some passes."""
    token = _OFF.set(_OFF.get() | frozenset(names))
    try:
        yield
    finally:
        _OFF.reset(token)


def is_on(name: str) -> bool:
    """Return whether a pass is not switched off."""
    return name not in _OFF.get()

"""Relations between values of one program: equality, being a part, changing in a loop.

Each answer is proved: if it is not known, the answer is no.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._mesh import Axis
from . import term as T
from .collectives import dealt
from .keep import Kept
from .loops import free_in
from .value import Unknown, Value, read_as

Seen = dict[T.Term, bool]


def same_reading(a: Value, b: Value) -> bool:
    """Return whether every device has the same in both values, in any reading.

    For shares only their sum is known, not which share a device has.
    """
    if a.owed or b.owed:
        return False
    if a == b:
        return True
    if a.local != b.local or a.axes != b.axes:
        return False
    try:
        return read_as(a, b.dims) == b or a == read_as(b, a.dims)
    except Unknown:
        return False


def own_part(v: Value, dimension: int, axes: Sequence[Axis]) -> Value | None:
    """Return each device's block of a replicated dimension, or None if that is not defined."""
    try:
        return dealt(v, dimension, axes)
    except Unknown:
        return None


def is_number(v: Value) -> bool:
    """Return whether a value is a constant number."""
    return T.is_uniform(v.term) and T.is_one(T.core(v.term))


def changes_in_loop(v: Value, depth: int, kept: Kept, seen: Seen) -> bool:
    """Return whether a value may change between iterations of the loop at this depth.

    `seen` caches answers for further questions about the same loop.
    """
    if not seen:
        seen.update(dict.fromkeys(kept.unknown, True))
    return bool(v.owed) or free_in(v.term, depth, seen)

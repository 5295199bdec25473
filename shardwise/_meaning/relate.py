"""Questions about the values of one program: the same, a part of it, does it change in a loop.

Each answer is a proof: where it is not known, the answer is no.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._mesh import Axis
from . import term as T
from .collectives import dealt
from .control import free_in
from .keep import Kept
from .value import Unknown, Value, read_as

Seen = dict[T.Term, bool]


def same_reading(a: Value, b: Value) -> bool:
    """Whether every device holds the same in both, however they are read.

    What is owed says what the shares add up to, and not which of them a device has.
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
    """Each device's own block of a dimension that all have; None where it has none."""
    try:
        return dealt(v, dimension, axes)
    except Unknown:
        return None


def is_number(v: Value) -> bool:
    """Whether it is one number, the same in every run."""
    return T.is_uniform(v.term) and T.is_one(T.core(v.term))


def changes_in_loop(v: Value, depth: int, kept: Kept, seen: Seen) -> bool:
    """Whether a value may change from one turn of the loop at this depth to the next.

    `seen` remembers what was found, for further questions about the same loop.
    """
    if not seen:
        seen.update(dict.fromkeys(kept.unknown, True))
    return bool(v.owed) or free_in(v.term, depth, seen)

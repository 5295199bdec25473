"""Which arguments have to be zero for a term to be: what data hides of it."""

from __future__ import annotations

from collections.abc import Callable

from .compare import MIXES
from .term import LINEAR, Term

ALL = {"sum", "concatenate", "scatter_add", "add_rows"}
"""What is zero only where all of its operands are."""


def vanishing(t: Term, is_zero: Callable[[int], bool]) -> tuple[int, ...]:
    """The arguments that make a term zero, by number, if those that `is_zero` says are zero do."""
    if t.op == "symbol":
        own = t.params[1] if t.params[:1] == ("argument",) else None
        return (own,) if own is not None and is_zero(own) else ()
    if t.op not in LINEAR and t.op not in MIXES:
        return ()
    found = [vanishing(kid, is_zero) for _, kid in t.kids]
    if t.op in ALL and not all(found):
        return ()
    kept = found if t.op in ALL else [one for one in found if one][:1]
    return tuple(dict.fromkeys(number for one in kept for number in one))

"""Which zero arguments make a term zero, so that such data hides mistakes in it."""

from __future__ import annotations

from collections.abc import Callable

from .compare import MIXES
from .term import LINEAR, Term, bottom_up

ALL = {"sum", "concatenate", "scatter_add", "add_rows"}
"""Operations that are zero only if all of their operands are."""


def vanishing(
    t: Term, is_zero: Callable[[int], bool], known: dict[Term, tuple[int, ...]]
) -> tuple[int, ...]:
    """Return the arguments, by index, that make a term zero if those that `is_zero` selects are.

    `known` caches answers for terms.
    """

    def arguments(t: Term) -> tuple[int, ...]:
        if t.op == "symbol":
            index = t.params[1] if t.params[:1] == ("argument",) else None
            return (index,) if index is not None and is_zero(index) else ()
        if t.op not in LINEAR and t.op not in MIXES:
            return ()
        rows = [known[kid] for _, kid in t.kids]
        if t.op in ALL and not all(rows):
            return ()
        kept = rows if t.op in ALL else [numbers for numbers in rows if numbers][:1]
        return tuple(dict.fromkeys(number for numbers in kept for number in numbers))

    return bottom_up(t, known, arguments)

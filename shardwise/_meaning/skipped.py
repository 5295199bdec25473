"""Maxima and minima over devices, which skip NaN where that of one device is NaN.

The two are the same for data without NaN, and `prove` is about such data where a program has a
`pmax` or `pmin`. So a program may compute with the result, but not ask whether it is NaN, nor
compare or order it, which would hide the NaN.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import term as T
from .finite import may_be_nan
from .notes import Notes
from .term import Term
from .value import Unknown


def refuse_skipped(w: Notes, name: str, terms: Iterable[Term], tests_nan: bool = False) -> None:
    """Raise `Unknown` for a question about a maximum over devices, or about what is made of it.

    With `tests_nan` the question is whether there is NaN: other data in the same sum does not
    matter then.
    """
    if not w.skipping:
        return
    for t in terms:
        if any(T.core(u) in w.skipping for u in T.below(t)) if tests_nan else _is_skipped(w, t):
            raise Unknown(
                f"{name} of a maximum over devices, which skips NaN as on one device none"
            )


def _is_skipped(w: Notes, t: Term) -> bool:
    """Return whether a term is computed from maxima over devices and from no other data."""
    stack, seen = [t], {t}
    while stack:
        top = stack.pop()
        if T.core(top) in w.skipping:
            continue
        data = [kid for _, kid in top.kids if may_be_nan(kid)]
        if not data:
            return False
        stack += [kid for kid in data if kid not in seen]
        seen.update(data)
    return True


def tests_nan(t: Term) -> bool:
    """Return whether a comparison of this term with zero shows NaN of terms that cancel."""
    return any(u is T.NOTHING for u in T.below(t))

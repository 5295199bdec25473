"""Comparison of two results in several ways, each with limited work.

Where devices are kept apart, a result is a concatenation of theirs, made of slices of the
arguments; one device computes the same numbers from whole arrays. Divided into blocks that end
where a slice ends, with the slices moved down to the arguments, both are the same expressions, at
least in the normal form for softmax.

Loops are also equal because one iteration of them is, whatever the number of iterations. A symbol
stands for each whole carried value, and each device gets its part of it. The devices' results of
one iteration, joined, are compared with those of one device. If both are equal for any carried
values, and the initial values are equal, then so are the results after any number of iterations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from . import term as T
from .blocks import Seams
from .compare import equal
from .merged import equal_merged
from .softmax import Normal
from .term import Scaled, Term
from .value import Value, whole

WORK = 1 << 18
"""The work allowed for one comparison of two results, in operands handled."""

ALL = 1 << 19
"""The work allowed for all results on one mesh together."""

MANY = 256
"""Results with more blocks than this are not compared."""

DEEP = 50_000
"""Terms with more subterms than this are not divided into blocks."""

Way = Callable[[Value, Value], bool]


def equal_in_pieces(a: Value, b: Value) -> bool:
    """Return whether two results are the same expressions, block by block."""
    return _equal_in_blocks(a, b, Normal.piece)


def equal_in_blocks(a: Value, b: Value) -> bool:
    """Return whether two results are the same, block by block, in the normal form."""
    return _equal_in_blocks(a, b, Normal.block)


def _equal_in_blocks(a: Value, b: Value, block: Callable[..., Scaled]) -> bool:
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    if sum(1 for _ in zip(range(DEEP), T.below(a.term), strict=False)) == DEEP:
        return False
    seams = Seams([a.term, b.term])
    rows = [seams.pieces([(a.term, d), (b.term, d)], size) for d, size in enumerate(a.term.shape)]
    if math.prod(map(len, rows)) > MANY:
        return False
    normal = Normal(seams)
    return all(
        block(normal, a.scaled, place) == block(normal, b.scaled, place)
        for place in itertools.product(*rows)
    )


WAYS: tuple[Way, ...] = (equal, equal_merged, equal_in_pieces, equal_in_blocks)
"""The comparisons, the fastest first."""

FINITE: tuple[Way, ...] = (equal, equal_in_pieces)
"""The comparisons that do not assume finite carried values: with masks they may be infinite."""


def same(want: Value, got: Value, left: T.Left, ways: Sequence[Way] = WAYS) -> bool | None:
    """Return whether two results are equal, or None if too long for what is `left`."""
    result: bool | None = False
    for comparison in ways:
        try:
            with T.at_most(WORK, left):
                if comparison(want, got):
                    return True
        except (T.TooMuch, T.TooLate, RecursionError):
            result = None
    return result


LOOPS = ("loop", "while")


def same_by_iteration(want: Value, got: Value, left: T.Left) -> bool:
    """Return whether two results are equal, given that one iteration of their loops is."""
    masks = any(term.op == "literal" for v in (want, got) for term in T.below(v.term))
    ways = FINITE if masks else WAYS
    known: dict[tuple[Scaled, Scaled], bool] = {}

    def alike(a: Scaled, b: Scaled) -> bool:
        """Return whether two terms are equal, comparing loops by one iteration."""
        if a != b and (a, b) not in known:
            known[a, b] = compared(a, b)
        return a == b or known[a, b]

    def compared(a: Scaled, b: Scaled) -> bool:
        (c, s), (d, t) = a, b
        if s.shape != t.shape:
            return False
        if _loops(s) == _loops(t):
            return bool(same(whole(a), whole(b), left, ways))
        if c != d or (s.op, s.params, len(s.kids)) != (t.op, t.params, len(t.kids)):
            return False
        return all(alike(x, y) for x, y in zip(s.kids, t.kids, strict=True))

    try:
        return want.plain and got.plain and alike(want.scaled, got.scaled)
    except RecursionError:
        return False


def _loops(t: Term) -> set[Term]:
    """Return the loops in a term."""
    return {term for term in T.below(t) if term.op in LOOPS}

"""The table of operations of terms, like the table of primitives.

A term that represents a primitive mostly has its name and its properties. Terms have some further
operations: normal forms, predicates of a number, and the value on one device.
"""

from __future__ import annotations

from collections.abc import Callable

from ..._program.primitive_row import Primitive as P
from ..._program.primitives import TABLE

_OWN = (
    P("sum", "pointwise", linear="all", combines="sum"),
    P("product", "pointwise", linear="each", combines="prod"),
    P("select", "pointwise", linear="rest", selects=True),
    P("bcast", "moves", "repeat", "all", selects=True),
    P("permute", "moves", "reorder", "all", selects=True),
    P("device", "moves", "part", "all", selects=True),
    P("rows", "moves", "lookup", "first", selects=True),
    P("update", "moves", "update", selects=True),
    P("dot", "contracts", "", "each", "sum"),
    P("conv", "contracts", "", "each", "sum"),
    P("scatter_add", "scatters", combines="sum"),
    P("add_rows", "scatters", combines="sum"),
    P("loop", "control"),
    P("reciprocal", "pointwise", growth=1),
    P("zero", "pointwise", truth=True),
    P("nonzero", "pointwise", truth=True),
    P("negative", "pointwise", truth=True),
    P("positive", "pointwise", truth=True),
    P("nonpositive", "pointwise", truth=True),
    P("nonnegative", "pointwise", truth=True),
    P("is_nan", "pointwise", truth=True),
    P("truncate", "pointwise", bounded=True, rounds=True),
    P("wrap", "pointwise", bounded=True, bits=True),
    P("held", "pointwise", bounded=True, bits=True),
)

OPERATIONS: dict[str, P] = {**TABLE, **{row.name: row for row in _OWN}}
"""Every operation by its name."""

UNKNOWN = P("")


def of(name: str) -> P:
    """Return the properties of an operation; an empty row if it has none."""
    return OPERATIONS.get(name, UNKNOWN)


def operations(is_true: Callable[[P], object]) -> frozenset[str]:
    """Return the operations whose row satisfies a predicate."""
    return frozenset(name for name, row in OPERATIONS.items() if is_true(row))


BY_ELEMENT = operations(lambda p: p.pointwise and (p.selects or not p.linear))
"""Elementwise operations other than sums and products, which have normal forms of their own."""

LINEAR = operations(lambda p: p.linear == "all" and not p.pointwise and p.moves != "join")
"""Operations that are linear in their one operand."""

MOVED = operations(lambda p: p.moves in ("reorder", "part", "repeat", "join"))
"""Operations whose result has elements of their operands and no others."""

REDUCED = operations(lambda p: p.acts == "reduces" and p.combines in ("sum", "max", "min"))
"""Reductions for which `reduce` has a normal form."""

TRUTHS = operations(lambda p: p.truth)
"""Operations whose result is 0 or 1."""

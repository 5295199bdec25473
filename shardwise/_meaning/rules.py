"""The table of rules: one for each primitive of JAX, as `_collectives` has one for each collective.

A rule is given what the operands are and says what the results are. What it cannot say it leaves to
`Unknown`; it never guesses. `table()` is what the documentation shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._program import Leaf
from . import term as T
from .notes import Notes
from .term import Scaled, Shape
from .value import Dims, Value, hidden_sizes, whole_size

Rule = Callable[[Notes, Leaf, list[Value]], list[Value]]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule into the table."""

    def enter(own: Rule) -> Rule:
        for name in names:
            RULES[name] = own
        return own

    return enter


def table() -> dict[str, str]:
    """Every primitive that has a rule, with the first sentence of what the rule says."""
    return {name: (own.__doc__ or "").split("\n")[0] for name, own in sorted(RULES.items())}


def structural(
    v: Value, name: str, params: Any, dims: Dims, *, term: Scaled | None = None
) -> Value:
    """A linear rearrangement of one operand: coefficient, debts and hidden axes pass through."""
    shape = (*hidden_sizes(v.hidden), *map(whole_size, dims))
    made = term if term is not None else T.linear(name, params, v.scaled, shape)
    return v.having(made, dims=dims)


def frozen(value: Any) -> Any:
    """A parameter of a primitive as something that can be compared and hashed."""
    if isinstance(value, dict):
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    try:
        hash(value)
    except TypeError:
        return str(value)
    return value


def shifted(dims: Sequence[int], lead: int) -> tuple[int, ...]:
    """Numbers of dimensions of a local array as those of a term with hidden dimensions."""
    return tuple(d + lead for d in dims)


__all__ = ["RULES", "Shape", "frozen", "rule", "shifted", "structural", "table"]

"""The table of rules: one for each primitive; `collectives` has the rules for collectives.

A rule takes the meanings of the operands and returns those of the results. Where it does not apply
it raises `Unknown`; it never guesses. It declares the algebra that it needs, and the table does not
apply it to dtypes that lack that algebra. The documentation shows `table()`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._program import Collective, Leaf
from .algebra import INTEGER, NARROW, Algebra, kind_of
from .bits import dtype_of, held, may_have_wrapped, widens
from .notes import Notes
from .value import Unknown, Value

Read = Callable[[Notes, Leaf, list[Value]], list[Value]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule of a primitive, and the algebra that it needs."""

    read: Read
    needs: Algebra
    positions: tuple[int, int | None] = (0, 0)
    """The range of operands that are positions, for which wrapping around matters."""

    def __call__(self, w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
        """Return the meanings of the results; raise `Unknown` for an unsupported dtype."""
        positions = range(*slice(*self.positions).indices(len(op.ins)))
        dtypes = [dtype_of(atom) for atom in op.ins]
        for i, dtype in enumerate(dtypes):
            if i in positions and kind_of(dtype) not in (INTEGER, NARROW):
                raise Unknown(f"{op.name} at positions of dtype {dtype}")
        admit(op, self.needs, [d for i, d in enumerate(dtypes) if i not in positions])
        admit(op, self.needs, [var.dtype for var in op.outs])
        return self.read(w, op, self._held(op, ins, dtypes, positions))

    def _held(self, op: Leaf, ins: list[Value], dtypes: list[Any], at: range) -> list[Value]:
        """Return the operands in their dtypes, wherever wrapping around makes a difference."""
        if not self.needs.wraps:
            return [held(v, dtype) for v, dtype in zip(ins, dtypes, strict=True)]
        new, out = op.outs[0].dtype, []
        for i, (v, dtype) in enumerate(zip(ins, dtypes, strict=True)):
            exact = i in at or widens(dtype, new)
            if exact and v.owed and may_have_wrapped(v, dtype):
                raise Unknown(f"each device's {dtype} may have wrapped around as it becomes {new}")
            out.append(held(v, dtype) if exact else v)
        return out


def admit(op: Leaf | Collective, needs: Algebra, dtypes: Sequence[Any]) -> None:
    """Raise `Unknown` for a dtype that lacks an algebra."""
    for dtype in dtypes:
        if kind_of(dtype) not in needs.kinds:
            raise Unknown(f"{op.name} of dtype {dtype} is not one of the kind that is known here")


RULES: dict[str, Rule] = {}


def rule(
    *names: str,
    needs: Algebra,
    positions: tuple[int, int | None] = (0, 0),
    default: bool = False,
) -> Callable[[Read], Read]:
    """Enter a rule into the table, with the algebra that it needs.

    A `default` is for those of the primitives that have no other rule.
    """

    def enter(own: Read) -> Read:
        for name in names:
            new = Rule(own, needs, positions)
            RULES[name] = RULES.get(name, new) if default else new
        return own

    return enter


def table() -> dict[str, str]:
    """Return every primitive that has a rule, with the first line of the rule's docstring."""
    return {
        name: (entry.read.__doc__ or "").split("\n")[0] for name, entry in sorted(RULES.items())
    }


def frozen(value: Any) -> Any:
    """Return a parameter of a primitive as a hashable value."""
    if isinstance(value, dict):
        return tuple(sorted((key, frozen(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    try:
        hash(value)
    except TypeError:
        # The text of an array leaves out elements.
        is_array = isinstance(value, np.ndarray)
        return (str(value.dtype), value.shape, value.tobytes()) if is_array else str(value)
    return value


def shifted(dims: Sequence[int], lead: int) -> tuple[int, ...]:
    """Return dimensions of a local array as those of a term with `lead` hidden dimensions."""
    return tuple(d + lead for d in dims)

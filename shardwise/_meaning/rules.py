"""The table of rules: one for each primitive of JAX, as `_collectives` has one for each collective.

A rule takes the meanings of the operands and returns those of the results. What it cannot say it
leaves to `Unknown`; it never guesses. It declares the algebra that it needs, and the table applies
it to no dtype of which that algebra does not hold. `table()` is what the documentation shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._program import Collective, Leaf
from . import term as T
from .algebra import INTEGER, NARROW, Algebra, kind_of
from .bits import dtype_of, held, may_have_wrapped, widens
from .notes import Notes
from .term import Scaled, Shape
from .value import Dims, Unknown, Value, hidden_sizes, whole_size

Read = Callable[[Notes, Leaf, list[Value]], list[Value]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a primitive does to meanings, and the algebra of which that is true."""

    read: Read
    needs: Algebra
    positions: tuple[int, int | None] = (0, 0)
    """The operands that are positions: what wraps around there is another position."""

    def __call__(self, w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
        """The meanings of the results; `Unknown` for a dtype that the rule does not hold for."""
        at = range(*slice(*self.positions).indices(len(op.ins)))
        dtypes = [dtype_of(atom) for atom in op.ins]
        for i, dtype in enumerate(dtypes):
            if i in at and kind_of(dtype) not in (INTEGER, NARROW):
                raise Unknown(f"{op.name} at positions of dtype {dtype}")
        admit(op, self.needs, [d for i, d in enumerate(dtypes) if i not in at])
        admit(op, self.needs, [var.dtype for var in op.outs])
        return self.read(w, op, self._held(op, ins, dtypes, at))

    def _held(self, op: Leaf, ins: list[Value], dtypes: list[Any], at: range) -> list[Value]:
        """The operands as devices hold them, wherever wrapping around makes a difference."""
        if not self.needs.wraps:
            return [held(v, dtype) for v, dtype in zip(ins, dtypes, strict=True)]
        new, out = op.outs[0].dtype, []
        for i, (v, dtype) in enumerate(zip(ins, dtypes, strict=True)):
            used = i in at or widens(dtype, new)
            if used and v.owed and may_have_wrapped(v, dtype):
                raise Unknown(f"each device's {dtype} may have wrapped around as it becomes {new}")
            out.append(held(v, dtype) if used else v)
        return out


def admit(op: Leaf | Collective, needs: Algebra, dtypes: Sequence[Any]) -> None:
    """Refuse dtypes of which an algebra does not hold."""
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

    A `default` is for those of the primitives that have no rule of their own.
    """

    def enter(own: Read) -> Read:
        for name in names:
            new = Rule(own, needs, positions)
            RULES[name] = RULES.get(name, new) if default else new
        return own

    return enter


def table() -> dict[str, str]:
    """Every primitive that has a rule, with the first sentence of what the rule says."""
    return {name: (own.read.__doc__ or "").split("\n")[0] for name, own in sorted(RULES.items())}


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


__all__ = ["RULES", "Rule", "Shape", "admit", "frozen", "rule", "shifted", "structural", "table"]

"""The recorded values of a run, and the uses of each value in the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Container

from ..._engine.lower import StackedValue
from ..._program import Body, Op, Passes, Var, Where, residuals_of, walk


@dataclasses.dataclass(frozen=True)
class IterationContext:
    """The loops and branches around a list of operations."""

    iteration: tuple[int, ...] = ()
    only: tuple[dict[str, int], ...] | None = None


@dataclasses.dataclass(frozen=True)
class DerivativeCall:
    """A call of `grad` or a similar function: its name and its line."""

    function: str
    where: Where


@dataclasses.dataclass(frozen=True)
class StackedResult:
    """One result of an operation, stacked for all devices."""

    op: Op
    out: int
    value: StackedValue
    around: IterationContext
    call: DerivativeCall | None = None
    """The derivative that it is a result of, if it is shown at the line of that call."""
    name: str = ""
    """Its name on that line."""

    @property
    def var(self) -> Var:
        """The value in the program."""
        return self.op.outs[self.out]


class Uses:
    """The uses of each value of a program."""

    def __init__(self, body: Body):
        self.passes = Passes(body)
        self.residuals = residuals_of(body, self.passes)
        self.results: dict[Var, int] = {}
        """The results of each body, with their index."""
        self._readers: dict[Var, list[Op]] = {}
        self._order: dict[int, int] = {}
        ops = list(walk(body.ops))
        for block in (body, *(inner for op in ops for inner in op.bodies)):
            self.results |= {v: i for i, v in enumerate(block.outs) if isinstance(v, Var)}
        for number, op in enumerate(ops):
            self._order[id(op)] = number
            for atom in op.ins:
                if isinstance(atom, Var):
                    self._readers.setdefault(atom, []).append(op)

    def backward(self, op: Op) -> bool:
        """Return whether an operation belongs to the backward pass of a derivative."""
        return self.passes.of(op) == "backward"

    def needed(self, var: Var, inside: Container[int]) -> bool:
        """Return whether a value is used outside these operations and the backward pass."""
        if var in self.results:
            return True
        readers = (op for op in self._readers.get(var, ()) if not self.backward(op))
        return any(
            id(op) not in inside and not self.residuals.issuperset(op.outs) for op in readers
        )

    def leaves(self, var: Var, inside: Container[int]) -> tuple[int, int] | None:
        """Return where a value is first used outside these operations; None if nowhere.

        Uses by the backward pass of an enclosing derivative do not count.
        """
        readers = (op for op in self._readers.get(var, ()) if not op.back_through_all)
        positions = [self._order[id(op)] for op in readers if id(op) not in inside]
        if not positions and var not in self.results:
            return None
        return min(positions, default=len(self._order)), self.results.get(var, 0)

"""The state of the lowering around a list of operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..._mesh import Axis
from ..._program import Lit, Op, Var
from .deadlock import Divergence, DivergenceWatch, first_of
from .plan import BlockSum
from .shards_at_once import Pace
from .value import StackedValue

Env = dict[Var | Lit, StackedValue]
Run = Callable[[Sequence[Op], Sequence[Axis], Env, Sequence[Var], "Context"], None]


@dataclasses.dataclass(frozen=True)
class Context:
    """The coordinates fixed by outer loops, the number of shards at once, and divergences so
    far."""

    run: Run
    watch: DivergenceWatch
    pace: Pace
    coords: dict[Axis, Any] = dataclasses.field(default_factory=dict)
    divergences: list[Divergence] = dataclasses.field(default_factory=list)
    summing: dict[BlockSum, str] = dataclasses.field(default_factory=dict)
    """The block sums whose collective is outside, with the name of the block."""
    adding: dict[Var, Any] = dataclasses.field(default_factory=dict)
    """Stacks computed by an inner loop, with the totals to which their rows are added."""
    batched: bool = False
    """Whether a `vmap` over several devices is around."""
    grown: dict[Var, Var] = dataclasses.field(default_factory=dict)
    """For a loop that runs for all devices together: carried values by the values that replace
    them."""
    repeats: dict[Any, Any] | None = None
    """The loops so far, and functions for those that occur again."""

    def fresh(self) -> Context:
        """Return a copy for a nested trace, which returns its divergence as a value."""
        return dataclasses.replace(self, divergences=[])

    def at(
        self,
        axis: Axis,
        index: Any,
        pace: Pace,
        summing: dict[BlockSum, str],
        adding: dict[Var, Any],
        batched: bool,
    ) -> Context:
        """Return the context inside a loop over `axis`."""
        return dataclasses.replace(
            self,
            coords={**self.coords, axis: index},
            pace=pace,
            divergences=[],
            summing=self.summing | summing,
            grown={},
            adding=self.adding | adding,
            batched=self.batched or batched,
        )

    def divergence(self) -> Divergence:
        """Return all divergences so far as one value."""
        return first_of([self.watch.no_divergence(), *self.divergences])


def read(env: Env, atom: Var | Lit) -> StackedValue:
    """Return the value of an operand; a constant is its own value unless `env` has another."""
    return StackedValue(atom.value) if isinstance(atom, Lit) and atom not in env else env[atom]

"""What surrounds a list of operations while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..._mesh import Axis
from ..._program import Lit, Op, Var
from .deadlock import Trouble, Watch, first_of
from .plan import BlockSum
from .shards_at_once import Pace
from .value import Value

Env = dict[Var | Lit, Value]
Run = Callable[[Sequence[Op], Sequence[Axis], Env, Sequence[Var], "Context"], None]


@dataclasses.dataclass(frozen=True)
class Context:
    """The coordinates fixed by loops around, the pace, and the trouble met so far."""

    run: Run
    watch: Watch
    pace: Pace
    coords: dict[Axis, Any] = dataclasses.field(default_factory=dict)
    troubles: list[Trouble] = dataclasses.field(default_factory=list)
    summing: dict[BlockSum, str] = dataclasses.field(default_factory=dict)
    """The sums over a block of devices that somebody waits for, with the name of the block."""
    adding: dict[Var, Any] = dataclasses.field(default_factory=dict)
    """Stacks that an inner loop makes, with the totals that their rows are added to."""
    batched: bool = False
    """Whether a `vmap` over several devices is around."""
    grown: dict[Var, Var] = dataclasses.field(default_factory=dict)
    """Where a loop is run for all devices together: what it carries on, by what comes of it."""
    repeats: dict[Any, Any] | None = None
    """The loops met so far, and the functions of those that were met again."""

    def fresh(self) -> Context:
        """The same for a nested trace: its trouble has to be handed out of it as a value."""
        return dataclasses.replace(self, troubles=[])

    def at(
        self,
        axis: Axis,
        index: Any,
        pace: Pace,
        summing: dict[BlockSum, str],
        adding: dict[Var, Any],
        batched: bool,
    ) -> Context:
        """Inside a loop over `axis`."""
        return dataclasses.replace(
            self,
            coords={**self.coords, axis: index},
            pace=pace,
            troubles=[],
            summing=self.summing | summing,
            grown={},
            adding=self.adding | adding,
            batched=self.batched or batched,
        )

    def trouble(self) -> Trouble:
        """All trouble met here as one value."""
        return first_of([self.watch.calm(), *self.troubles])


def read(env: Env, atom: Var | Lit) -> Value:
    """The value of an operand; a constant is its own, unless it is given another one."""
    return Value(atom.value) if isinstance(atom, Lit) and atom not in env else env[atom]

"""Use the symbolic analysis for collectives: what devices hold around them, and what they waste."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..._meaning import Kept, holding, keep
from ..._program import Body, Collective, walk
from .avoid import plans
from .data import CollectiveUse, Holding, Redundant
from .instead import Avoidance

MOST = 60_000
"""Larger programs are not analysed: it would take longer than tracing them."""


@dataclasses.dataclass(frozen=True)
class SymbolicValues:
    """The symbolic values of a program, as far as they are known."""

    meanings: Kept | None = None
    plans: dict[int, Avoidance] = dataclasses.field(default_factory=dict)
    failed: str = ""
    """Why nothing is known, or empty."""

    @classmethod
    def of(cls, body: Body, constants: Sequence[Any], paths: Sequence[str]) -> SymbolicValues:
        """Analyse a program. Failures here must not cost the user the report."""
        operations = sum(1 for _ in walk(body.ops))
        if operations > MOST:
            return cls(failed=f"it has {operations:,} operations")
        try:
            meanings = keep(body, constants, paths)
            return cls(meanings, plans(body, meanings))
        except Exception as error:
            return cls(failed=f"{type(error).__name__}: {error}")

    def holding(self, op: Collective) -> Holding | None:
        """Return what each device holds before and after a collective."""
        facts = self.meanings.of(op) if self.meanings else None
        if facts is None:
            return None
        return Holding(holding(facts.ins[0], facts.names), holding(facts.outs[0], facts.names))

    def redundant(
        self,
        op: Collective,
        use: CollectiveUse,
        places: Mapping[int, int],
        recorded: Sequence[CollectiveUse],
    ) -> Redundant | None:
        """Return the redundancy of a collective, with what avoiding it would save.

        Args:
            op: The collective.
            use: What the report has of it.
            places: The index in `recorded` of each collective so far, by `id`.
            recorded: The collectives so far.
        """
        plan = self.plans.get(id(op))
        if plan is None:
            return None
        times = max(1, use.least // plan.once)
        instead = tuple(dataclasses.replace(other, times=times) for other in plan.others)
        saved = use.total_bytes - sum(other.total_bytes for other in instead)
        also = None if plan.also is None else places[id(plan.also)]
        if also is not None:
            saved += recorded[also].total_bytes
        if saved <= 0:
            return None
        return Redundant(plan.kind, plan.reason, plan.remedy, saved, instead, also, plan.memory)

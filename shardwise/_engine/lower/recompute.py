"""Choose which values are stored between stages, and which are recomputed in the later stage.

A value that one stage computes and a later one reads is stored for all devices, although they may
run one after the other. The program does not prescribe the stage: a layer that is recomputed for
the backward pass could be computed before or after the devices communicate, and autodiff stores
half a dozen values that are elementwise functions of one activation. So, if that stores less,

- an operation that only later stages use moves there,
- elementwise functions of stored values are recomputed.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence

from ..._mesh import Axis
from ..._program import Atom, AxisIndex, Cond, Leaf, Op, Scan, Var, While, primitives, twin
from .plan import Stage

CHEAP = primitives.names(
    lambda p: (p.pointwise and not p.series) or p.moves in ("reorder", "part", "repeat")
) | {"iota"}
"""Primitives that are as cheap to recompute as to read."""

SMALL = 1 << 20
"""Bytes of all devices together up to which nothing is moved."""

FAR = 20
"""The largest depth of the search for the sources of a value."""

FEW = 16
"""The number of operations that may always be recomputed in a stage."""


def move_between_stages(
    stages: Sequence[Stage], axis: Axis, ops: Sequence[Op], keep: Iterable[Var]
) -> None:
    """Move each operation into the stage where the least has to be kept for it."""
    if len(stages) > 1:
        plan = _Stages(stages, axis, ops, keep)
        for level in reversed(range(1, len(stages))):
            _StageSearch(plan, level).run()


class _Stages:
    """The stages, and for each value the stages that compute and read it."""

    def __init__(self, stages: Sequence[Stage], axis: Axis, ops: Sequence[Op], keep: Iterable[Var]):
        self.stages, self.axis = stages, axis
        self.number = {id(op): number for number, op in enumerate(ops)}
        self.level: dict[Var, int] = {}
        """The first stage in which a value is available."""
        self.producers: dict[Var, Op] = {}
        """The movable operations, by their results."""
        self.reads: dict[Var, list[int]] = {}
        """The stages in which movable operations read a value."""
        self.fixed: dict[Var, list[int]] = {var: [len(stages)] for var in keep}
        """The stages in which other operations read a value."""
        for level, stage in enumerate(stages):
            for op in stage.outside:
                self._read(op, level, self.fixed)
            for op in stage.inside:
                can_move = isinstance(op, MOVABLE) and not op.effectful
                self.level.update(dict.fromkeys(op.outs, level))
                self.producers.update(dict.fromkeys(op.outs, op) if can_move else {})
                self._read(op, level, self.reads if can_move else self.fixed)
            for op in stage.meetings:
                self.level.update(dict.fromkeys(op.outs, level + 1))
                self._read(op, level, self.fixed)

    def _read(self, op: Op, level: int, reads: dict[Var, list[int]]) -> None:
        for var in _vars(op.ins):
            reads.setdefault(var, []).append(level)

    def move(self, op: Op, level: int) -> None:
        """Move an operation to another stage."""
        old = self.level[op.outs[0]]
        self.stages[old].inside.remove(op)
        self.level.update(dict.fromkeys(op.outs, level))
        for var in _vars(op.ins):
            self.reads[var].remove(old)
        self.add(op, level)

    def add(self, op: Op, level: int) -> None:
        """Add an operation to a stage."""
        self.stages[level].inside.append(op)
        self._read(op, level, self.reads)

    def is_read_before(self, var: Var, level: int) -> bool:
        """Return whether an earlier stage reads a value."""
        return any(
            stage < level for reads in (self.reads, self.fixed) for stage in reads.get(var, ())
        )

    def is_stored(self, var: Var, level: int) -> bool:
        """Return whether a value has to be stored until that stage in any case."""
        fixed = any(stage >= level for stage in self.fixed.get(var, ()))
        return fixed or any(stage > level for stage in self.reads.get(var, ()))

    def bytes(self, var: Var) -> int:
        """Return the bytes of a value on all devices."""
        return var.bytes * (self.axis.size if self.axis in var.axes else 1)


MOVABLE = (Leaf, AxisIndex, Scan, While, Cond)
"""Operations that may move to another stage. Sums over a block are looked up by identity."""


class _StageSearch:
    """The search, from the last operation back, for values to compute in a stage instead of storing
    them."""

    def __init__(self, plan: _Stages, level: int):
        self.plan, self.level = plan, level
        self.stage = plan.stages[level]
        read = {var for op in self.stage.inside for var in _vars(op.ins)}
        self.stored = {var for var in read if self._is_older(var)}
        self.computed: set[Var] = set()
        """Values of earlier stages that are computed here."""
        self.repeated: list[Op] = []
        """Operations that run in an earlier stage too."""
        self.budget = max(FEW, len(self.stage.inside))
        """How many more operations may be repeated."""
        self.known: dict[Var, Sources] = {}
        """The sources of values, valid until an operation is moved."""

    def run(self) -> None:
        """Search, and change the stages."""
        if self._cost(self.stored) <= SMALL:
            return
        # Recomputing a value may pay once its sources are stored for another value.
        while self._improve():
            pass
        self._finish()

    def _improve(self) -> bool:
        """Visit the operations that compute the stored values; return whether any moved."""
        heap = self._producers(self.stored)
        heapq.heapify(heap)
        visited: set[int] = set()
        count = len(self.computed)
        while heap:
            number, op = heapq.heappop(heap)
            if number not in visited:
                visited.add(number)
                for entry in self._producers(self._take(op)):
                    heapq.heappush(heap, entry)
        return len(self.computed) > count

    def _producers(self, values: Iterable[Var]) -> list[tuple[int, Op]]:
        """Return the operations of older stages for these values; the last has the smallest
        number."""
        plan = self.plan
        producers = [
            plan.producers[var] for var in values if var in plan.producers and self._is_older(var)
        ]
        return [(-plan.number[id(op)], op) for op in producers]

    def _is_older(self, var: Var) -> bool:
        return self.plan.level.get(var, self.level) < self.level

    def _cost(self, values: Iterable[Var]) -> int:
        """Return the bytes that are stored for this stage if these values are."""
        plan, level = self.plan, self.level
        return sum(plan.bytes(var) for var in values if not plan.is_stored(var, level))

    def _take(self, op: Op) -> set[Var]:
        """Compute an operation here if that is better; return the values to visit next."""
        read_before = any(self.plan.is_read_before(var, self.level) for var in op.outs)
        cheap = _is_cheap(op)
        if read_before and not cheap:
            return set()
        sources, computed = self._sources(op.ins)
        if not self.computed.intersection(op.outs):
            saved, cost = self._cost(self.stored.intersection(op.outs)), self._cost(sources)
            better = cost < saved or (cost == saved > 0 and cheap)
            if not better or len(computed) + read_before > self.budget:
                return set()
            self.budget -= len(computed) + read_before
        self.known.clear()
        self.stored = (self.stored - {*op.outs}) | sources
        self.computed |= {*op.outs} | computed
        if read_before:
            self.repeated.append(op)
        else:
            self.plan.move(op, self.level)
        return sources | computed

    def _sources(self, atoms: Iterable[Atom], far: int = 0) -> Sources:
        """Return the values to store and those to compute here, to obtain these values."""
        pairs = [self._source(var, far) for var in _vars(atoms)]
        return set().union(*(keep for keep, _ in pairs)), set().union(*(new for _, new in pairs))

    def _source(self, var: Var, far: int) -> Sources:
        if not self._is_older(var) or var in self.stored or var in self.computed:
            return set(), set()
        if self.plan.is_stored(var, self.level):
            return {var}, set()
        if var not in self.known:
            self.known[var] = {var}, set()
            producer = self.plan.producers.get(var)
            if producer is not None and _is_cheap(producer) and far < FAR:
                sources, computed = self._sources(producer.ins, far + 1)
                if self._cost(sources) <= self._cost([var]):
                    self.known[var] = sources, computed | {var}
        return self.known[var]

    def _finish(self) -> None:
        new = {var: twin(var) for op in self.repeated for var in op.outs}
        for op in self.repeated:
            self.plan.add(op, self.level)
        ops = sorted(self.stage.inside, key=lambda op: self.plan.number[id(op)])
        copies = set(map(id, self.repeated))
        for var in new:  # this stage no longer reads the original
            self.plan.reads[var] = [level for level in self.plan.reads[var] if level != self.level]
        self.stage.inside = [_renamed(op, new, id(op) in copies) for op in ops]


Sources = tuple[set[Var], set[Var]]


def _renamed(op: Op, new: dict[Var, Var], repeated: bool) -> Op:
    """Return an operation that reads recomputed values, and is possibly recomputed itself."""
    if not repeated and not any(atom in new for atom in op.ins):
        return op
    ins = [new.get(atom, atom) if isinstance(atom, Var) else atom for atom in op.ins]
    return dataclasses.replace(op, ins=ins, outs=[new[v] for v in op.outs] if repeated else op.outs)


def _is_cheap(op: Op) -> bool:
    return isinstance(op, AxisIndex) or (isinstance(op, Leaf) and op.name in CHEAP)


def _vars(atoms: Iterable[Atom]) -> list[Var]:
    return [atom for atom in dict.fromkeys(atoms) if isinstance(atom, Var)]

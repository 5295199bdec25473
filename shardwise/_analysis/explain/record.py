"""Turn the operations of a program into collectives and steps, with counts, bytes and FLOPs."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

from ..._program import (
    Body,
    Collective,
    Cond,
    Leaf,
    Op,
    Passes,
    Scan,
    Var,
    While,
    anywhere,
    caller_of,
    collectives_in,
    primitives,
)
from ..._program.collectives import RULES
from ..._program.where import NOWHERE
from ..compiler.work import Tally
from .data import CollectiveUse, ProgramPart
from .flops import flops_of
from .meant import SymbolicValues
from .memory import fused, is_view
from .placing import Layouts


@dataclasses.dataclass
class ProgramTally(Tally):
    """Accumulated work: of one device, and without the repetitions on other devices."""

    distinct: float = 0.0
    products: float = 0.0
    """The part of `distinct` from matrix products and convolutions."""
    sent: int = 0
    uncounted: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: Any, times: int = 1) -> None:
        """Add another tally, `times` times."""
        super().add(other, times)
        self.distinct += times * other.distinct
        self.products += times * other.products
        self.sent += times * other.sent
        self.uncounted |= other.uncounted


@dataclasses.dataclass(frozen=True)
class LoopContext:
    """The loops and branches around a list of operations."""

    count: int = 1
    """How often the list runs, if each `while` around it runs once."""
    known: bool = True
    """Whether there is no `while` around."""
    module: str = ""

    def inside(self, op: Op, length: int = 1) -> LoopContext:
        """Return the context of the body of `op`, which runs `length` times."""
        is_known = self.known and not isinstance(op, While)
        return LoopContext(self.count * length, is_known, self.module_of(op))

    def module_of(self, op: Op) -> str:
        """Return the Flax module of an operation, or the user's own `jax.named_scope`."""
        sources = () if op.source is None else (*reversed(op.calls), op.source)
        stacks = [str(source.name_stack) for source in sources]
        return "/".join(filter(None, [self.module, *map(module_in, stacks)]))


class CollectiveRecorder:
    """A walk over a program that records its collectives in program order."""

    def __init__(self, layouts: Layouts, passes: Passes, meanings: SymbolicValues):
        self.layouts = layouts
        self.passes = passes
        self.meanings = meanings
        self.collectives: list[CollectiveUse] = []
        self.places: dict[int, int] = {}
        self.launch = 0
        self.launched: set[Var] = set()
        """Results of the collectives in the current message."""

    def steps(
        self, body: Body, around: LoopContext
    ) -> tuple[tuple[ProgramPart, ...], ProgramTally]:
        """Return the steps of a list of operations, and the work of running it once."""
        skip = fused(body)
        finished: list[ProgramPart] = []
        total, part, ops = ProgramTally(), ProgramTally(), []

        def close() -> None:
            nonlocal part, ops
            if part.operations:
                finished.append(self._compute(ops, part, around))
            total.add(part)
            part, ops = ProgramTally(), []

        for op in body.ops:
            if ops and self.passes.of(ops[0]) != self.passes.of(op):
                close()
            if not _talks(op):
                part.add(self._nested(op, around)[1] if op.bodies else self._alone(op, skip))
                ops.append(op)
                continue
            close()
            communicates = isinstance(op, Collective)
            step, tally = (
                self._collective(op, around, finished) if communicates else self._nested(op, around)
            )
            finished.append(step)
            total.add(tally)
        close()
        return tuple(finished), total

    def _nested(self, op: Op, around: LoopContext) -> tuple[ProgramPart, ProgramTally]:
        """Record a loop or a conditional; totals include the branch that sends most, or else
        computes most."""
        length = op.length if isinstance(op, Scan) else None
        inner = around.inside(op, 1 if length is None else length)
        starts, bodies, tallies = [], [], []
        for body in op.bodies:
            starts.append(len(self.collectives))
            steps, tally = self.steps(body, inner)
            bodies.append(steps)
            tallies.append(tally)
        counted = 0
        if isinstance(op, Cond):
            costs = [(tally.sent, tally.flops, tally.moved) for tally in tallies]
            counted = costs.index(max(costs))
            for number, (start, end) in enumerate(
                itertools.pairwise([*starts, len(self.collectives)])
            ):
                if number != counted:
                    uses = self.collectives[start:end]
                    self.collectives[start:end] = [
                        dataclasses.replace(use, counted=False) for use in uses
                    ]
            tallies = [tallies[counted]]
        elif isinstance(op, While):
            bodies = [(*bodies[0], *bodies[1])]
        total = ProgramTally(operations=1)
        for tally in tallies:
            total.add(tally, 1 if length is None else length)
        step = ProgramPart(
            type(op).__name__.lower(),
            op.where,
            **amounts(total),
            length=length,
            bodies=tuple(bodies),
            counted=counted,
            direction=self.passes.of(op),
            module=around.module_of(op),
        )
        return step, total

    def _collective(
        self, op: Collective, around: LoopContext, before: list[ProgramPart]
    ) -> tuple[ProgramPart, ProgramTally]:
        operand = op.ins[0]
        shape, dtype, size = _type(operand, op)
        count = group_size(op)
        bytes_sent = RULES[op.name].sends(size, count) if op.sends else 0
        # Collectives called inside a library may have no line in the user's code.
        line = op.where if op.where.file else anywhere(op.source)
        use = CollectiveUse(
            name=op.name,
            axes=tuple(axis.name for axis in op.axes),
            group_size=count,
            shape=shape,
            dtype=dtype,
            bytes=size,
            count=around.count if around.known else None,
            least=around.count,
            bytes_sent=bytes_sent,
            direction=self.passes.of(op),
            where=line,
            caller=caller_of(op.source, line) or NOWHERE,
            module=around.module_of(op),
            meaning=self.meanings.holding(op),
        )
        if operand in self.launched or not self._follows(use, before):
            self.launch, self.launched = self.launch + 1, set()
        self.launched |= set(op.outs)
        index = len(self.collectives)
        self.places[id(op)] = index
        redundant = self.meanings.redundant(op, use, self.places, self.collectives)
        self.collectives.append(dataclasses.replace(use, launch=self.launch, redundant=redundant))
        step = ProgramPart(
            "collective", line, collective=index, direction=use.direction, module=use.module
        )
        return step, ProgramTally(sent=bytes_sent)

    def _follows(self, use: CollectiveUse, before: list[ProgramPart]) -> bool:
        """Return whether it directly follows a collective of the same kind and pass, or call."""
        place = before[-1].collective if before else None
        if place is None:
            return False
        last = self.collectives[place]
        is_alike = (last.name, last.axes) == (use.name, use.axes)
        return is_alike and (last.direction == use.direction or last.where == use.where)

    def _alone(self, op: Op, skip: set[Var]) -> ProgramTally:
        """Return the work of an operation without a collective or others inside."""
        tally = ProgramTally(operations=int(not is_view(op)), moved=self._moved(op, skip))
        if isinstance(op, Leaf):
            self._leaf(op, tally)
        return tally

    def _compute(self, ops: list[Op], tally: ProgramTally, around: LoopContext) -> ProgramPart:
        first = next((op for op in ops if op.where.file and not is_view(op)), ops[0])
        return ProgramPart(
            "compute",
            first.where,
            **amounts(tally),
            operations=tally.operations,
            direction=self.passes.of(first),
            module=around.module_of(first),
        )

    def _leaf(self, op: Leaf, tally: ProgramTally) -> None:
        counted = flops_of(op)
        if counted is None:
            tally.uncounted.add(op.name)
            return
        kind, flops = counted
        axes = op.needs
        if not op.scope:
            split = self.layouts.axes(op.outs[0]) if op.outs else ()
            flops /= math.prod(axis.size for axis in split)
            axes = frozenset(split)
        tally.kinds[kind] = flops
        tally.distinct += flops * math.prod(axis.size for axis in axes)
        if kind in ("dot", "convolution"):
            operand = next((atom for atom in op.ins if isinstance(atom, Var)), op.outs[0])
            tally.dots[str(operand.dtype)] = flops
            tally.products = tally.distinct

    def _moved(self, op: Op, skip: set[Var]) -> int:
        """Return the bytes read and written by values that are in memory."""
        if is_view(op):
            return 0
        written = sum(self.layouts.bytes(var) for var in op.outs if var not in skip)
        row = primitives.of(op.name) if isinstance(op, Leaf) else primitives.UNKNOWN
        if row.moves in ("part", "lookup"):
            return 2 * written
        if row.name == "dynamic_update_slice":
            update = op.ins[1]
            return 2 * self.layouts.bytes(update) if isinstance(update, Var) else 0
        read = {atom for atom in op.ins if isinstance(atom, Var) and atom not in skip}
        return written + sum(self.layouts.bytes(var) for var in read)


def amounts(work: Tally) -> dict[str, Any]:
    """Return the fields of a `ProgramPart` with its work."""
    return {"flops": work.flops, "moved": work.moved, "dots": work.dots}


def _talks(op: Op) -> bool:
    has_collective = any(True for body in op.bodies for _ in collectives_in(body.ops))
    return isinstance(op, Collective) or has_collective


def group_size(op: Collective) -> int:
    """Return how many devices exchange something; the largest group if they differ."""
    if op.groups is not None:
        return max(len(group) for group in op.groups)
    return math.prod(axis.size for axis in op.axes)


def module_in(stack: str) -> str:
    """Return the module names in a name stack, without transformations such as `jvp(...)`."""
    stack = re.sub(r"\bjit\([^()]*\)", "", stack)
    while (inner := re.sub(r"\b\w+\(([^()]*)\)", r"\1", stack)) != stack:
        stack = inner
    names = (part for part in stack.split("/") if part.isidentifier())
    return "/".join(name for name in names if name not in OWN_NAMES)


OWN_NAMES = primitives.names(lambda p: p.acts in ("call", "control"))
OWN_NAMES |= {"body", "checkpoint", "rematted_computation", "remat"}
"""Names that JAX itself adds to the name stack, or to the path of a compiled operation."""


def _type(operand: object, op: Collective) -> tuple[tuple[int, ...], str, int]:
    value = operand if isinstance(operand, Var) else op.outs[0]
    return value.shape, value.kind, value.bytes

"""Explain why the compiler sends something: which operation needs another sharding."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

from ..._program import Where, primitives
from ..._program.primitives import EXCHANGES
from ..._program.where import NOWHERE, choose_compiled
from ..compiler.compile import Compiled
from ..compiler.devices import spec_of_sharding
from ..compiler.hlo import Instruction, instruction_of
from ..compiler.sent import Sent
from ..compiler.shardings import Sharded, loop_inputs, sharded_values
from . import units
from .data import CollectiveUse, Sharding, Why

ALONG = frozenset(
    ("reduce", "reduce-window", "select-and-scatter", "sort", "topk", "custom-call", "fft")
    + ("gather", "scatter", "convolution")
)
"""Operations that combine or look up elements along a dimension."""

MOVES = frozenset(
    ("slice", "dynamic-slice", "dynamic-update-slice", "pad", "concatenate", "reverse", "reshape")
)
"""Operations that move elements along a dimension."""


class Reasons:
    """The reasons for the collectives of a compiled program, looked up by line."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled
        self.values = list(sharded_values(compiled.whole, compiled.mesh))
        self.by_name: dict[tuple[str, int], list[Sharded]] = {}
        loops = loop_inputs(compiled.whole, compiled.mesh)
        for value in itertools.chain(self.values, loops):
            line = choose_compiled(compiled.whole.stack(value.instruction)).line
            self.by_name.setdefault((value.instruction.op_name, line), []).append(value)

    def of(self, use: CollectiveUse, sent: Sent) -> Why | None:
        """Return the reason for a collective; None if its line does not show it."""
        values = self.by_name.get((sent.instruction.op_name, use.where.line), ())
        for value in values:
            if why := _reason(use, value):
                return _sliced(why) if sent.sliced else why
        return None

    def replicated(self) -> Iterator[str]:
        """Yield notes on arrays that the partitioner replicates to reshard them, from its log."""
        rows = re.compile(
            r"Involuntary full rematerialization.*?from sharding (\{.*?\}) to (\{.*?\})"
            r"(?: efficiently)? for HLO operation %?(.*)"
        )
        for match in rows.finditer(self.compiled.files.log):
            instruction = instruction_of(f"  %{match[3]}")
            if instruction is None or not instruction.types:
                continue
            rank, kind = len(instruction.types[0].shape), instruction.types[0]
            specs = [
                spec_of_sharding(text, rank, self.compiled.mesh) for text in match.groups()[:2]
            ]
            old_spec, new_spec = ("no spec" if spec is None else units.spec(spec) for spec in specs)
            array = units.array(kind.shape, kind.dtype)
            yield (
                f"{self._line_of(instruction)}: {array} is replicated on every device to get "
                f"from {old_spec} to {new_spec}, since the compiler knows no direct way "
                "(involuntary full rematerialization): go there in two steps, or keep one spec."
            )

    def _line_of(self, instruction: Instruction) -> Where:
        """Return the line of an instruction in the log, which may lack its metadata."""
        if instruction.frame:
            return choose_compiled(self.compiled.whole.stack(instruction))
        sharding = instruction.attribute("sharding")
        candidates = (value.instruction for value in self.values)
        candidates = (
            candidate for candidate in candidates if candidate.opcode == instruction.opcode
        )
        lines = {
            choose_compiled(self.compiled.whole.stack(candidate))
            for candidate in candidates
            if candidate.attribute("sharding") == sharding
        }
        places = {(line.file, line.line) for line in lines}
        return lines.pop() if len(places) == 1 else NOWHERE

    def shardings(self) -> list[Sharding]:
        """Return how the values of each line are sharded, each sharding once."""
        rows: dict[Sharding, None] = {}
        for value in self.values:
            line = choose_compiled(self.compiled.whole.stack(value.instruction))
            if line.file and len(value.instruction.types) == 1:
                backward = "transpose(" in value.instruction.op_name
                direction = "backward" if backward else "forward"
                kind = value.type
                row = Sharding(line, value.primitive, kind.shape, kind.dtype, value.spec, direction)
                rows.setdefault(row)
        return list(rows)


def _reason(use: CollectiveUse, sharded: Sharded) -> Why | None:
    opcode = sharded.instruction.opcode
    if opcode == "dot":
        return _of_product(use, sharded)
    if opcode == "reduce" and use.name not in EXCHANGES:
        return _of_reduction(use, sharded)
    why = _across(use, sharded) if opcode in ALONG else None
    if why is None and use.name in EXCHANGES:
        why = _of_resharding(use, sharded)
    if why is None and opcode in MOVES:
        why = _across(use, sharded)
    return why


def _of_product(use: CollectiveUse, sharded: Sharded) -> Why | None:
    """Return the reason if a product sums over a split dimension or needs a missing part."""
    operands = sharded.operands
    if len(operands) != 2 or any(operand.spec is None for operand in operands):
        return None
    sides = list(zip(operands, sharded.contracted, strict=True))
    if use.name not in EXCHANGES:
        split = [
            (operand, place)
            for operand, places in sides
            for place in places
            if set(use.axes) & set((operand.spec or ())[place])
        ]
        if not split or not _is_part(use, sharded):
            return None
        operand, place = split[0]
        which = "both operands" if len({id(operand) for operand, _ in split}) > 1 else "one operand"
        return Why(
            "contraction",
            f"the product sums over a dimension of size {operand.type.shape[place]} that is split "
            f"over {units.axes(use.axes)} in {which} "
            f"({_shown(operands[0])} @ {_shown(operands[1])}), so each device has a partial sum "
            f"of the result, {units.array(sharded.type.shape, sharded.type.dtype)}",
            before=None,
            after=sharded.spec,
        )
    for operand, _ in sides:
        lost = set(use.axes) & {name for row in operand.spec or () for name in row}
        if lost and _is_part(use, operand):
            return Why(
                "operand",
                f"the product needs more of {_shown(operand)} than a device holds: it is split "
                f"over {units.axes(sorted(lost))}, and the result is "
                f"{_spec(sharded)}",
                before=operand.spec,
                after=None,
            )
    return None


def _of_reduction(use: CollectiveUse, sharded: Sharded) -> Why | None:
    operand = next(iter(sharded.operands), None)
    if operand is None or operand.spec is None:
        return None
    places = [
        int(place) for place in re.findall(r"\d+", sharded.instruction.attribute("dimensions"))
    ]
    if not any(set(use.axes) & set(operand.spec[place]) for place in places):
        return None
    return Why(
        "reduction",
        f"{sharded.primitive} goes over a dimension of {_shown(operand)} that is split over "
        f"{units.axes(use.axes)}",
        before=operand.spec,
        after=sharded.spec,
    )


def _of_resharding(use: CollectiveUse, sharded: Sharded) -> Why | None:
    """Return the reason if an operand, best one of which a part is sent, has another spec."""
    if not (operands := sharded.operands):
        return None
    is_loop, moves = (sharded.instruction.opcode == name for name in ("tuple", "transpose"))
    candidates = [operand for operand in operands if _is_part(use, operand)]
    if not is_loop:  # it has one value for each array, of which one is sent
        candidates.append(max(operands, key=lambda operand: operand.type.bytes))
    resharded = (o for o in candidates if o.spec is not None and (moves or o.spec != sharded.spec))
    operand = next(resharded, None)
    if operand is None or sharded.spec is None:
        return None
    kind = "resharding" if primitives.of(sharded.primitive).acts == "places" else "operation"
    array = units.array(operand.type.shape, operand.type.dtype)
    subject = f"{array} is" if kind == "resharding" else f"{sharded.primitive} takes {array}"
    needed = "the loop needs it" if is_loop else "the result is needed"
    return Why(
        kind,
        f"{subject} sharded as {_spec(operand)}, and {needed} as {_spec(sharded)}",
        before=operand.spec,
        after=sharded.spec,
    )


def _across(use: CollectiveUse, sharded: Sharded) -> Why | None:
    """Return the reason for an operation along a split dimension of an operand."""
    split = [
        (operand, place)
        for operand in sharded.operands
        for place, names in enumerate(operand.spec or ())
        if set(names) & set(use.axes)
    ]
    if not split:
        return None
    operand, place = max(split, key=lambda row: (_is_part(use, row[0]), row[0].type.bytes))
    summed = use.name not in EXCHANGES
    effect = "its partial results are combined" if summed else "a device needs what others hold"
    return Why(
        "operation",
        f"{sharded.primitive} goes along a dimension of size {operand.type.shape[place]} of "
        f"{_shown(operand)} that is split over {units.axes(use.axes)}, so {effect}",
        before=operand.spec,
        after=sharded.spec,
    )


def _is_part(use: CollectiveUse, sharded: Sharded) -> bool:
    """Return whether what is sent has the size of one device's part, in any order."""
    if use.dtype != sharded.type.dtype or sharded.spec is None:
        return False
    # If a sum is scattered afterwards, the whole is reduced.
    reduced_axes = () if use.name in EXCHANGES else use.axes
    parts = [
        math.prod(sharded.mesh[name] for name in row if name not in reduced_axes)
        for row in sharded.spec
    ]
    local = (-(-size // count) for size, count in zip(sharded.type.shape, parts, strict=True))
    return math.prod(local) == math.prod(use.shape)


def _sliced(why: Why) -> Why:
    """Return the reason for a reduction of which each device keeps a part."""
    return dataclasses.replace(
        why,
        kind="sliced",
        reason=f"{why.reason}; each device then keeps only its part of the sum, so a "
        "reduce-scatter would send half: TPUs and GPUs do that where they see it",
    )


def _shown(sharded: Sharded) -> str:
    return f"{units.array(sharded.type.shape, sharded.type.dtype)} as {_spec(sharded)}"


def _spec(sharded: Sharded) -> str:
    return "no spec" if sharded.spec is None else units.spec(sharded.spec)

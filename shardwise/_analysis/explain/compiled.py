"""Turn a compiled program into the rows, steps and figures of a report."""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ..._mesh import split_over
from ..._program import Where
from ..._program.where import NOWHERE, caller_in, choose_compiled
from ..compiler.compile import Compiled
from ..compiler.devices import spec_of_sharding
from ..compiler.hlo import Instruction, Type
from ..compiler.sent import Nested, Node, Sent, direction_of, sent_in, work_in
from ..compiler.shardings import shardings_in
from .data import ArrayLayout, CollectiveUse, Live, Memory, MeshAxis, ProgramPart, Work
from .record import amounts, module_in
from .why import Reasons

LIVE = 8
"""The number of largest buffers that are listed."""


class Rows:
    """The collectives and steps of a compiled program."""

    def __init__(self, compiled: Compiled, recorded: Sequence[CollectiveUse]):
        self.compiled = compiled
        self.recorded = _by_line(recorded)
        self.nameless = _nameless(compiled, recorded)
        self.reasons = Reasons(compiled)
        self.collectives: list[CollectiveUse] = []

    def steps(self, nodes: Sequence[Node] | None = None) -> tuple[ProgramPart, ...]:
        """Return what one device runs, in order; this also fills `collectives`."""
        nodes = self.compiled.schedule if nodes is None else nodes
        return tuple(self._step(node) for node in nodes)

    def _step(self, node: Node) -> ProgramPart:
        match node:
            case Sent():
                use = self._use(node)
                self.collectives.append(use)
                place = len(self.collectives) - 1
                return ProgramPart(
                    "collective", use.where, collective=place, direction=use.direction
                )
            case Nested():
                return ProgramPart(
                    node.kind,
                    self.where(node.instruction),
                    **amounts(work_in([node])),
                    length=node.trips,
                    bodies=tuple(map(self.steps, node.bodies)),
                    counted=node.chosen,
                    direction=direction_of(node.instruction),
                )
        return ProgramPart(
            "compute",
            self.where(node.first) if node.first else NOWHERE,
            **amounts(node),
            operations=node.operations,
            direction=direction_of(node.first, node.update) if node.first else "forward",
        )

    def where(self, instruction: Instruction) -> Where:
        """Return the user's line that an instruction comes from."""
        return choose_compiled(self.compiled.module.stack(instruction))

    def _use(self, sent: Sent) -> CollectiveUse:
        line = self.where(sent.instruction)
        use = CollectiveUse(
            name=sent.name,
            axes=sent.axes,
            group_size=sent.group_size,
            shape=sent.type.shape,
            dtype=sent.type.dtype,
            bytes=sent.type.bytes,
            count=sent.times if sent.known else None,
            least=sent.times,
            bytes_sent=sent.bytes_sent,
            direction=sent.direction,
            where=line,
            caller=caller_in(self.compiled.module.stack(sent.instruction), line),
            module=module_in(sent.instruction.op_name.rpartition("/")[0]),
            counted=sent.counted,
            launch=sent.message,
            by="program" if sent.written else "compiler",
            of=self.compiled.argument(sent),
            result_shape=sent.result.shape,
        )
        if not sent.written and (candidates := self.nameless.get(_kind(use))):
            recorded = candidates.pop(0)
            use = dataclasses.replace(
                use, by="program", where=recorded.where, direction=recorded.direction
            )
        elif not sent.written:
            return dataclasses.replace(use, why=self.reasons.of(use, sent))
        else:
            recorded = self.recorded.get(_line(use))
        if recorded is None:
            return use
        return dataclasses.replace(
            use, meaning=recorded.meaning, module=recorded.module, caller=recorded.caller
        )


def with_redundant(
    uses: Sequence[CollectiveUse], recorded: Sequence[CollectiveUse]
) -> list[CollectiveUse]:
    """Return the collectives with the redundancy found for those that the program calls."""
    places = {_line(use): place for place, use in enumerate(uses) if use.by == "program"}
    updated = list(uses)
    for use in recorded:
        place, redundant = places.get(_line(use)), use.redundant
        if place is None or redundant is None:
            continue
        also = None if redundant.also is None else places.get(_line(recorded[redundant.also]))
        if redundant.also is None or also is not None:
            redundant = dataclasses.replace(redundant, also=also)
            updated[place] = dataclasses.replace(updated[place], redundant=redundant)
    return updated


def _line(use: CollectiveUse) -> tuple[object, ...]:
    return use.name, use.axes, use.shape, use.where.file, use.where.line


def _kind(use: CollectiveUse) -> tuple[object, ...]:
    return use.name, use.axes, use.shape


def _nameless(
    compiled: Compiled, recorded: Sequence[CollectiveUse]
) -> dict[tuple[object, ...], list[CollectiveUse]]:
    """Return the program's collectives whose names the compiler dropped, by kind.

    Combined collectives may lose the name of the call and keep those of their operands' makers.
    """
    counts: collections.Counter[tuple[object, ...]] = collections.Counter(
        (sent.name, sent.axes, sent.type.shape)
        for sent in sent_in(compiled.schedule)
        if sent.written
    )
    nameless: dict[tuple[object, ...], list[CollectiveUse]] = {}
    for use in recorded:
        if counts[_kind(use)] > 0:
            counts[_kind(use)] -= 1
        else:
            nameless.setdefault(_kind(use), []).append(use)
    return nameless


def _by_line(recorded: Sequence[CollectiveUse]) -> Mapping[tuple[object, ...], CollectiveUse]:
    return {_line(use): use for use in reversed(recorded)}


# --- layout of arguments and results


def held_results(
    compiled: Compiled, results: Sequence[ArrayLayout], mesh: Sequence[MeshAxis]
) -> list[ArrayLayout]:
    """Return the results with the shardings that the compiler chose."""
    entry = compiled.whole.computations.get(compiled.whole.entry, {})
    root = next((instruction for instruction in entry.values() if instruction.root), None)
    shardings = shardings_in("" if root is None else root.attribute("sharding"))
    if len(shardings) != len(results):
        return list(results)
    specs = [
        spec_of_sharding(text, len(result.shape), compiled.mesh)
        for result, text in zip(results, shardings, strict=True)
    ]
    return [
        result if spec is None else _with_spec(result, spec, mesh)
        for result, spec in zip(results, specs, strict=True)
    ]


def held_arguments(
    compiled: Compiled, arguments: Sequence[ArrayLayout], mesh: Sequence[MeshAxis]
) -> list[ArrayLayout]:
    """Return the arguments with the shardings they were compiled with."""
    inputs = compiled.inputs[len(compiled.inputs) - len(arguments) :]
    return [
        _with_spec(argument, split_over(compiled_input.spec), mesh)
        for argument, compiled_input in zip(arguments, inputs, strict=True)
    ]


def _with_spec(
    layout: ArrayLayout, rows: Sequence[tuple[str, ...]], mesh: Sequence[MeshAxis]
) -> ArrayLayout:
    """Return the same array with another sharding."""
    sizes = {axis.name: axis.size for axis in mesh}
    spec = (*rows, *[()] * (len(layout.shape) - len(rows)))
    parts = [math.prod(sizes[name] for name in row) for row in spec]
    local = tuple(-(-size // count) for size, count in zip(layout.shape, parts, strict=True))
    whole = layout.bytes * math.prod(layout.shape) // (math.prod(layout.local_shape) or 1)
    split = {name for row in spec for name in row}
    return dataclasses.replace(
        layout,
        spec=spec,
        local_shape=local,
        bytes=-(-whole * math.prod(local) // (math.prod(layout.shape) or 1)),
        replicated=tuple(axis.name for axis in mesh if axis.name not in split),
    )


# --- memory and work


def memory_of(compiled: Compiled, arguments: int, unused: int, results: int) -> Memory | None:
    """Return the memory of one device by XLA's buffer assignment; None if it is not reported."""
    if compiled.peak is None:
        return None
    peak = compiled.peak - unused  # unused arguments are kept only in this compilation
    live = tuple(_buffers(compiled.files.memory))[:LIVE]
    rest = max(0, peak - sum(buffer.bytes for buffer in live))
    return Memory(arguments, results, peak, NOWHERE, live, rest, ())


def _buffers(text: str) -> Iterator[Live]:
    """Yield the largest buffers, each as the first array that it holds."""
    row = re.compile(r"%\);\s+([\d.]+)(B|KiB|MiB|GiB|TiB);.*?;\s+(?:(\d+)×)?\(?(\w+)\[([\d,]*)\]")
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    for line in text.splitlines():
        if match := row.search(line):
            size, unit, _, element, shape = match.groups()
            kind = Type(element, tuple(int(part) for part in shape.split(",") if part))
            yield Live("buffer", kind.shape, kind.dtype, int(float(size) * units[unit]), NOWHERE)


def work_of(compiled: Compiled, whole: float) -> Work:
    """Return the arithmetic of one device; `whole` is the FLOPs of the whole program's products."""
    work = work_in(compiled.schedule)
    repeated = work.products * compiled.devices - whole
    return Work(
        flops=work.flops,
        total=work.flops * compiled.devices,
        redundant=repeated if repeated > 0.01 * whole else 0.0,
        by_kind=dict(work.kinds),
        moved=work.moved,
    )

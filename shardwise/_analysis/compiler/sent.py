"""List the collectives of an optimised module: what is sent, how often, from which line.

Every collective instruction is read, whatever its form: single, several combined into one,
asynchronous, inside loops, branches and called computations. All devices run the same module, so
the figures are those of one device.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ..._program import primitives
from ..._program.collectives import sends
from .devices import axes_of_groups, axes_of_pairs, permuted, replica_groups
from .hlo import Computation, Instruction, Module, Type
from .work import DeviceWork, add_instruction

NAMES = {
    "all-gather": "all_gather",
    "reduce-scatter": "psum_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "ragged_all_to_all",
    "collective-permute": "ppermute",
    "collective-broadcast": "pbroadcast",
}
"""The names in `jax.lax` of HLO opcodes; all-reduce has one for each reduction."""

REDUCTIONS = {
    "add": "psum",
    "maximum": "pmax",
    "or": "pmax",
    "minimum": "pmin",
    "and": "pmin",
}

WRITTEN = primitives.names(lambda p: p.acts == "collective")
"""JAX primitives that are collectives: the program itself calls them."""


@dataclasses.dataclass
class Sent:
    """One array that a collective of the compiled program sends."""

    name: str
    """The name in `jax.lax`; `all_reduce` for a reduction without a collective in `jax.lax`."""
    axes: tuple[str, ...]
    group_size: int
    type: Type
    """The type of one device's operand."""
    result: Type
    bytes_sent: int
    """Sent by one device each time, with ring algorithms."""
    times: int
    """How often it runs; loops with an unknown trip count count as one iteration."""
    known: bool
    """Whether all trip counts are known."""
    message: int
    """Arrays with the same number are sent as one message."""
    direction: str
    """`forward`, `backward` or `update`."""
    instruction: Instruction
    """The instruction with the source frames; for a combined collective, that of this array."""
    computation: str
    operand: str
    """The name of the instruction that computes the array."""
    sliced: bool = False
    """Whether each device keeps only a part of a reduced array."""
    counted: bool = True
    """False in branches of a conditional that send less than another."""

    @property
    def written(self) -> bool:
        """Whether the program itself calls this collective, in a `shard_map`."""
        return self.instruction.op_name.rpartition("/")[2] in WRITTEN


@dataclasses.dataclass(frozen=True)
class _Around:
    """The loops and branches around a computation."""

    times: int = 1
    known: bool = True
    update: bool = False
    """Whether its inputs depend on a backward pass."""


@dataclasses.dataclass(frozen=True)
class Nested:
    """A loop or a conditional with a collective inside."""

    kind: str
    """`scan`, `while` (a loop of unknown length) or `cond`."""
    instruction: Instruction
    bodies: list[list[Node]]
    trips: int | None = None
    """The length of a `scan`."""
    chosen: int = 0
    """For a `cond`, the branch that totals include: the one that sends most."""


Node = Sent | DeviceWork | Nested
"""A part of what one device runs."""


class Reader:
    """A walk over the computations of a module in execution order."""

    def __init__(self, module: Module, mesh: Mapping[str, int], devices: int):
        self.module, self.mesh, self.devices = module, mesh, devices
        self.messages = 0

    def schedule(self) -> list[Node]:
        """Return what one device runs, in order."""
        return self._nodes(self.module.entry, _Around())

    def _nodes(self, name: str, around: _Around) -> list[Node]:
        """Return the nodes of a computation; all work between two collectives is one node."""
        nodes: list[Node] = []
        for node in self._walk(name, around):
            if isinstance(node, DeviceWork) and nodes and isinstance(nodes[-1], DeviceWork):
                nodes[-1].add(node)
                nodes[-1].first = nodes[-1].first or node.first
            elif not isinstance(node, DeviceWork) or node.operations:
                nodes.append(node)
        return nodes

    def _walk(self, name: str, around: _Around) -> Iterator[Node]:
        computation = self.module.computations.get(name, {})
        later = _after_backward(computation)
        for instruction in computation.values():
            update = around.update or instruction.name in later
            context = dataclasses.replace(around, update=update)
            opcode = instruction.opcode.removesuffix("-start")
            if opcode == "all-reduce" or opcode in NAMES:
                yield from self._collective(instruction, opcode, computation, name, context)
            elif instruction.opcode == "while":
                yield self._loop(instruction, context)
            elif instruction.opcode == "conditional":
                yield self._branches(instruction, context)
            elif (wrapped := self._wrapped(instruction)) is not None:
                yield from self._collective(wrapped, wrapped.opcode, computation, name, context)
            elif instruction.opcode in ("call", "async-start"):
                for called in instruction.called:
                    yield from self._nodes(called, context)
            else:
                work = DeviceWork(update=context.update)
                add_instruction(work, instruction, computation, self.module)
                yield work

    def _wrapped(self, start: Instruction) -> Instruction | None:
        """Return the collective that an asynchronous call runs, with the operands of the call."""
        if start.opcode != "async-start":
            return None
        inner = self.module.computations.get("".join(start.called[:1]), {})
        for instruction in inner.values():
            if instruction.opcode == "all-reduce" or instruction.opcode in NAMES:
                sources = (_source(inner[name], inner) for name in instruction.operands)
                operands = tuple(start.operands[int(source.inside)] for source in sources)
                framed = instruction if instruction.frame else _with_metadata(instruction, start)
                return dataclasses.replace(framed, name=start.name, operands=operands)
        return None

    def _loop(self, instruction: Instruction, around: _Around) -> Node:
        trips = instruction.trips
        times = 1 if trips is None else trips
        is_known = around.known and trips is not None
        context = dataclasses.replace(around, times=around.times * times, known=is_known)
        body = [node for name in instruction.called for node in self._nodes(name, context)]
        if any(True for _ in sent_in(body)):
            return Nested("while" if trips is None else "scan", instruction, [body], trips)
        return _all_work(body, times, instruction)

    def _branches(self, instruction: Instruction, around: _Around) -> Node:
        bodies = [self._nodes(name, around) for name in instruction.branches]
        costs = [sum(sent.bytes_sent * sent.times for sent in sent_in(body)) for body in bodies]
        costliest = costs.index(max(costs))
        if not max(costs):
            return _all_work(bodies[0], 1, instruction)
        for place, body in enumerate(bodies):
            for sent in sent_in(body):
                sent.counted = sent.counted and place == costliest
        return Nested("cond", instruction, bodies, chosen=costliest)

    def _collective(
        self,
        instruction: Instruction,
        opcode: str,
        computation: Computation,
        name: str,
        around: _Around,
    ) -> Iterator[Sent]:
        called = self._name(instruction, opcode)
        axes, size = self._group(instruction, opcode)
        if size <= 1:
            return
        self.messages += 1
        sliced = _is_sliced(instruction, computation, self.module)
        line = instruction if instruction.frame else _with_line(instruction, computation)
        named = instruction if instruction.op_name else line
        for source, operand, result, origin in _arrays(line, opcode, computation):
            yield Sent(
                name=called,
                axes=axes,
                group_size=size,
                type=operand,
                result=result,
                bytes_sent=sends(called, operand.bytes, size),
                times=around.times,
                known=around.known,
                message=self.messages,
                direction=direction_of(named if origin is line else origin, around.update),
                instruction=origin,
                computation=name,
                operand=source,
                sliced=sliced,
            )

    def _name(self, instruction: Instruction, opcode: str) -> str:
        if opcode != "all-reduce":
            return NAMES[opcode]
        body = self.module.computations.get(instruction.attribute("to_apply").lstrip("%"), {})
        kinds = {op.opcode for op in body.values()} & (REDUCTIONS.keys() | {"multiply", "xor"})
        return REDUCTIONS.get(kinds.pop(), "all_reduce") if len(kinds) == 1 else "all_reduce"

    def _group(self, instruction: Instruction, opcode: str) -> tuple[tuple[str, ...], int]:
        if opcode == "collective-permute":
            axes = axes_of_pairs(permuted(instruction.attributes), self.mesh)
            return axes, math.prod(self.mesh[name] for name in axes)
        groups = replica_groups(instruction.attributes, self.devices)
        return axes_of_groups(groups, self.mesh), max(map(len, groups))


def sent_in(nodes: Sequence[Node]) -> Iterator[Sent]:
    """Yield everything that is sent, in order."""
    for node in nodes:
        if isinstance(node, Sent):
            yield node
        elif isinstance(node, Nested):
            for body in node.bodies:
                yield from sent_in(body)


def work_in(nodes: Sequence[Node]) -> DeviceWork:
    """Return all work, loop bodies times their trips; of branches, the one that totals include."""
    total = DeviceWork()
    for node in nodes:
        if isinstance(node, DeviceWork):
            total.add(node)
        elif isinstance(node, Nested):
            total.add(work_in(node.bodies[node.chosen]), 1 if node.trips is None else node.trips)
    return total


def _all_work(body: Sequence[Node], times: int, origin: Instruction) -> DeviceWork:
    total = DeviceWork(first=origin)
    total.add(work_in(body), times)
    return total


def _arrays(
    instruction: Instruction, opcode: str, computation: Computation
) -> Iterator[tuple[str, Type, Type, Instruction]]:
    """Yield operand, types of operand and result, and the instruction with the line, per array."""
    operands = [computation[name] for name in instruction.operands if name in computation]
    if opcode == "all-to-all" and len(operands) > 1:  # one operand for each device of the group
        (first,) = operands[0].types
        joined = Type(first.element, (len(operands), *first.shape))
        yield operands[0].name, joined, joined, instruction
        return
    if opcode in ("ragged-all-to-all", "collective-permute"):  # other operands are offsets
        operands = operands[:1]
    result_name = _finished(instruction, computation).name
    elements = {
        int(line.attribute("index")): line
        for line in computation.values()
        if line.opcode == "get-tuple-element" and line.operands == (result_name,)
    }
    asynchronous = instruction.opcode.endswith("-start")
    for place, operand in enumerate(operands):
        (kind,) = operand.types[:1]
        element = elements.get(place) if len(operands) > 1 and not asynchronous else None
        results = instruction.types[len(operands) :] if asynchronous else instruction.types
        result = results[place] if place < len(results) else kind
        lines = (element, _source(operand, computation)) if len(operands) > 1 else ()
        origin = next((line for line in lines if line is not None and line.frame), instruction)
        yield operand.name, kind, result, origin


def _with_line(instruction: Instruction, computation: Computation) -> Instruction:
    """Return a collective without a line, with that of its operand if it is a reduction.

    Otherwise, the line is that of the first operation that uses the result.
    """
    if instruction.attribute("to_apply"):
        source = _source(computation[instruction.operands[0]], computation)
        if source.frame:
            return _with_metadata(instruction, source)
    names = {instruction.name}
    for reader in computation.values():
        if not names.isdisjoint(reader.operands):
            if reader.frame and reader.opcode != "tuple":
                return _with_metadata(instruction, reader)
            names.add(reader.name)
    return instruction


def _with_metadata(instruction: Instruction, source: Instruction) -> Instruction:
    """Return an instruction with the name and the source line of another one."""
    attributes = _METADATA.sub("", instruction.attributes)
    metadata = "".join(_METADATA.findall(source.attributes)[:1])
    return dataclasses.replace(instruction, attributes=f"{attributes}, {metadata}")


def _source(instruction: Instruction, computation: Computation) -> Instruction:
    """Return the operation behind the copies and transposes that have no source line."""
    while instruction.opcode in ("bitcast", "copy", "transpose") and not instruction.frame:
        instruction = computation[instruction.operands[0]]
    return instruction


def _finished(collective: Instruction, computation: Computation) -> Instruction:
    """Return the `-done` instruction of an asynchronous collective; any other unchanged."""
    finishing = (
        line
        for line in computation.values()
        if line.opcode.endswith("-done") and line.operands == (collective.name,)
    )
    return next(finishing, collective)


_METADATA = re.compile(r'metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')


def _is_sliced(instruction: Instruction, computation: Computation, module: Module) -> bool:
    """Return whether all readers of a reduction's result take only a slice of it."""
    is_reduction = instruction.opcode.startswith("all-reduce")
    name = _finished(instruction, computation).name
    return is_reduction and _is_read_in_slices(name, computation, module)


def _is_read_in_slices(name: str, computation: Computation, module: Module) -> bool:
    readers = [reader for reader in computation.values() if name in reader.operands]
    return bool(readers) and all(_slices(reader, name, module) for reader in readers)


def _slices(reader: Instruction, name: str, module: Module) -> bool:
    if reader.opcode == "dynamic-slice":
        return reader.operands[0] == name
    if reader.opcode != "fusion":
        return False
    inner = module.computations.get(reader.attribute("calls").lstrip("%"), {})
    inside = ("parameter", str(reader.operands.index(name)))
    parameters = (
        argument.name for argument in inner.values() if (argument.opcode, argument.inside) == inside
    )
    return any(_is_read_in_slices(argument, inner, module) for argument in parameters)


def direction_of(instruction: Instruction, update: bool = False) -> str:
    """Return the pass of an instruction; `update` if it depends on the backward pass."""
    name = instruction.op_name
    if "transpose(" in name:
        return "backward"
    return "update" if update and "jvp(" not in name else "forward"


def _after_backward(computation: Computation) -> set[str]:
    """Return the instructions that are in, or depend on, the backward pass."""
    names: set[str] = set()
    for instruction in computation.values():
        if "transpose(" in instruction.op_name or not names.isdisjoint(instruction.operands):
            names.add(instruction.name)
    return names

"""Read how the compiler's sharding propagation shards every operation of a program."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from .devices import Spec, spec_of_sharding
from .hlo import Computation, Instruction, Module, Type

SILENT = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "while", "conditional", "call", "iota")
)
"""Operations that do not compute a value of a line."""


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The whole result of an operation, and its sharding."""

    instruction: Instruction
    computation: Computation
    type: Type
    spec: Spec | None
    """None if no `PartitionSpec` over the mesh can express it."""

    @property
    def primitive(self) -> str:
        """The JAX primitive it comes from."""
        return self.instruction.op_name.rpartition("/")[2]


def sharded_values(module: Module, mesh: Mapping[str, int]) -> Iterator[Sharded]:
    """Yield the first result of each operation that has a source line, in module order."""
    for computation in module.computations.values():
        for instruction in computation.values():
            has_line = instruction.op_name and instruction.frame
            if has_line and instruction.opcode not in SILENT and instruction.types:
                yield sharded(instruction, computation, mesh)


def loop_inputs(module: Module, mesh: Mapping[str, int]) -> Iterator[Sharded]:
    """Yield each array that a loop takes, as an operation on it with the loop's sharding."""
    for computation in module.computations.values():
        for instruction in computation.values():
            if instruction.opcode != "tuple" or not instruction.op_name.endswith("/while"):
                continue
            texts = shardings_in(instruction.attribute("sharding"))
            arrays = zip(instruction.types, instruction.operands, texts, strict=False)
            for kind, operand, text in arrays:
                attributes = f"sharding={text}, {instruction.attributes}"
                parameter = dataclasses.replace(
                    instruction, types=(kind,), operands=(operand,), attributes=attributes
                )
                yield sharded(parameter, computation, mesh)


def shardings_in(text: str) -> list[str]:
    """Return the shardings of a tuple's elements, or the only sharding."""
    if not text.startswith("{{"):
        return [text]
    return re.findall(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", text[1:-1])


def sharded(instruction: Instruction, computation: Computation, mesh: Mapping[str, int]) -> Sharded:
    """Return the result of one instruction with its sharding."""
    (type_,) = instruction.types[:1]
    text = instruction.attribute("sharding")
    spec = spec_of_sharding(text, len(type_.shape), mesh)
    return Sharded(instruction, computation, type_, spec)


def operands_of(product: Sharded, mesh: Mapping[str, int]) -> list[Sharded]:
    """Return the operands of an operation."""
    sources = (product.computation.get(name) for name in product.instruction.operands)
    return [sharded(source, product.computation, mesh) for source in sources if source is not None]


def contracted(product: Sharded) -> tuple[list[int], list[int]]:
    """Return the dimensions of both operands that a product sums over."""
    sides = ("lhs_contracting_dims", "rhs_contracting_dims")
    lhs, rhs = (re.findall(r"\d+", product.instruction.attribute(side)) for side in sides)
    return [int(place) for place in lhs], [int(place) for place in rhs]

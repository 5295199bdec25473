"""Read how the compiler's sharding propagation shards every operation of a program."""

from __future__ import annotations

import dataclasses
import functools
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
    """The whole result of an operation, and its sharding over the mesh."""

    instruction: Instruction
    computation: Computation
    mesh: Mapping[str, int]

    @property
    def type(self) -> Type:
        """The type of the result, or of the first of several."""
        return self.instruction.types[0]

    @functools.cached_property
    def spec(self) -> Spec | None:
        """Its spec; None if no `PartitionSpec` over the mesh can express the sharding."""
        text = self.instruction.attribute("sharding")
        return spec_of_sharding(text, len(self.type.shape), self.mesh)

    @property
    def primitive(self) -> str:
        """The JAX primitive it comes from."""
        return self.instruction.op_name.rpartition("/")[2]

    @functools.cached_property
    def operands(self) -> list[Sharded]:
        """The operands of the operation."""
        sources = (self.computation.get(name) for name in self.instruction.operands)
        return [
            Sharded(source, self.computation, self.mesh) for source in sources if source is not None
        ]

    @property
    def contracted(self) -> list[list[int]]:
        """The dimensions of both operands that a product sums over."""
        sides = ("lhs_contracting_dims", "rhs_contracting_dims")
        texts = (self.instruction.attribute(side) for side in sides)
        return [[int(place) for place in re.findall(r"\d+", text)] for text in texts]


def sharded_values(module: Module, mesh: Mapping[str, int]) -> Iterator[Sharded]:
    """Yield the first result of each operation that has a source line, in module order."""
    for computation in module.computations.values():
        for instruction in computation.values():
            has_line = instruction.op_name and instruction.frame
            if has_line and instruction.opcode not in SILENT and instruction.types:
                yield Sharded(instruction, computation, mesh)


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
                yield Sharded(parameter, computation, mesh)


def shardings_in(text: str) -> list[str]:
    """Return the shardings of a tuple's elements, or the only sharding."""
    if not text.startswith("{{"):
        return [text]
    return re.findall(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", text[1:-1])

"""Count the arithmetic of instructions, and the bytes they read and write in device memory."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Self

from .hlo import Computation, Instruction, Module

ELEMENTWISE = frozenset(
    ("abs", "add", "atan2", "cbrt", "ceil", "cosine", "divide", "erf", "exponential", "floor")
    + ("exponential-minus-one", "log", "log-plus-one", "logistic", "maximum", "minimum", "tanh")
    + ("multiply", "negate", "power", "remainder", "round-nearest-afz", "round-nearest-even")
    + ("rsqrt", "sign", "sine", "sqrt", "subtract", "tan")
)
FREE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while")
    + ("conditional", "call", "opt-barrier", "partition-id", "replica-id", "iota")
)
"""Instructions that do not read or write memory themselves."""


@dataclasses.dataclass
class Tally:
    """Accumulated work of one device."""

    kinds: dict[str, float] = dataclasses.field(default_factory=dict)
    """FLOPs by kind: `dot`, `convolution`, `elementwise`, `reduction`."""
    dots: dict[str, float] = dataclasses.field(default_factory=dict)
    """FLOPs of matrix products and convolutions, by dtype."""
    moved: int = 0
    operations: int = 0

    @property
    def flops(self) -> float:
        """FLOPs of all kinds."""
        return float(sum(self.kinds.values()))

    def add(self, other: Self, times: int = 1) -> None:
        """Add other work, `times` times."""
        for totals, added in ((self.kinds, other.kinds), (self.dots, other.dots)):
            for key, flops in added.items():
                totals[key] = totals.get(key, 0.0) + times * flops
        self.moved += times * other.moved
        self.operations += other.operations


@dataclasses.dataclass
class DeviceWork(Tally):
    """Accumulated work of instructions."""

    first: Instruction | None = None
    """An instruction with a source line, which stands for all of them."""
    update: bool = False
    """Whether the first instruction depends on the backward pass."""

    @property
    def products(self) -> float:
        """FLOPs of matrix products and convolutions."""
        return float(sum(self.dots.values()))


def add_instruction(
    work: DeviceWork, instruction: Instruction, computation: Computation, module: Module
) -> None:
    """Add one instruction of a computation, with everything fused into it."""
    if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
        return
    work.operations += 1
    if work.first is None or (instruction.frame and not work.first.frame):
        work.first = instruction
    operands = [computation[name] for name in instruction.operands if name in computation]
    work.moved += sum(result_type.bytes for source in operands for result_type in source.types)
    work.moved += sum(result_type.bytes for result_type in instruction.types)
    _arithmetic(work, instruction, computation, module)


def _arithmetic(
    work: DeviceWork, instruction: Instruction, computation: Computation, module: Module
) -> None:
    if instruction.opcode in ("fusion", "fusion-start"):
        for name in instruction.called:
            inner = module.computations.get(name, {})
            for operation in inner.values():
                _arithmetic(work, operation, inner, module)
        return
    kind, flops = _flops(instruction, computation)
    if not flops:
        return
    work.kinds[kind] = work.kinds.get(kind, 0.0) + flops
    if kind in ("dot", "convolution"):
        source = computation.get(instruction.operands[0], instruction)
        dtype = source.types[0].dtype
        work.dots[dtype] = work.dots.get(dtype, 0.0) + flops


def _flops(instruction: Instruction, computation: Computation) -> tuple[str, float]:
    size = math.prod(instruction.types[0].shape) if instruction.types else 0
    if instruction.opcode == "dot":
        lhs = computation[instruction.operands[0]].types[0].shape
        summed = re.findall(r"\d+", instruction.attribute("lhs_contracting_dims"))
        return "dot", 2.0 * size * math.prod(lhs[int(place)] for place in summed)
    if instruction.opcode == "convolution":
        kernel = computation[instruction.operands[1]].types[0].shape
        labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
        outputs = kernel[labels[1].index("o")] if labels else 1
        return "convolution", 2.0 * size * math.prod(kernel) / outputs
    if instruction.opcode == "reduce":
        source = computation[instruction.operands[0]].types[0].shape
        return "reduction", float(math.prod(source))
    return "elementwise", float(size) if instruction.opcode in ELEMENTWISE else 0.0

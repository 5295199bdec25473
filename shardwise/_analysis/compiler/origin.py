"""Find the program input that an array is, as long as nothing was computed from it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .hlo import Computation, Instruction, Module

MOVES = frozenset(
    ("copy", "bitcast", "bitcast-convert", "transpose", "reshape", "convert", "slice")
    + ("dynamic-slice", "broadcast", "opt-barrier", "all-gather", "all-gather-done", "copy-done")
)
"""Operations that return an array, or a part of it, in another form."""


class Origins:
    """The program inputs behind the arrays of a module."""

    def __init__(self, module: Module):
        self.module = module
        self.callers = _callers(module)

    def of(self, instruction: Instruction, computation: str) -> int | None:
        """Return the number of the input that an instruction returns in whole or part, if any."""
        visited = set()
        while (computation, instruction.name) not in visited:
            visited.add((computation, instruction.name))
            origin = self._before(instruction, computation)
            if origin is None or isinstance(origin, int):
                return origin
            instruction, computation = origin
        return None

    def _before(self, instruction: Instruction, name: str) -> tuple[Instruction, str] | int | None:
        computation = self.module.computations[name]
        if instruction.opcode == "parameter":
            return self._outside(instruction, name)
        if instruction.opcode == "get-tuple-element":
            return self._element(instruction, computation, name)
        source = None
        if instruction.opcode in MOVES:
            source = _largest(instruction, computation)
        elif instruction.opcode == "fusion" and (place := self._moved(instruction)) is not None:
            source = computation.get(instruction.operands[place])
        return None if source is None else (source, name)

    def _outside(self, parameter: Instruction, name: str) -> tuple[Instruction, str] | int | None:
        number = int(parameter.inside)
        if name == self.module.entry:
            return number
        caller = self.callers.get(name)
        if caller is None or caller[0].opcode == "while":
            return None
        instruction, outer = caller
        source = self.module.computations[outer].get(instruction.operands[number])
        return None if source is None else (source, outer)

    def _element(
        self, instruction: Instruction, computation: Computation, name: str
    ) -> tuple[Instruction, str] | None:
        """Return an element of a tuple; for a loop, only if the loop does not change it."""
        source, index = computation[instruction.operands[0]], int(instruction.attribute("index"))
        if source.opcode == "tuple":
            return computation[source.operands[index]], name
        if source.opcode == "while" and self._is_unchanged(source, index):
            return self._start(source, index, name)
        if source.opcode != "parameter":
            return None
        caller = self.callers.get(name)
        if (
            caller is None
            or caller[0].opcode != "while"
            or not self._is_unchanged(caller[0], index)
        ):
            return None
        return self._start(caller[0], index, caller[1])

    def _start(self, loop: Instruction, index: int, name: str) -> tuple[Instruction, str] | None:
        """Return the initial value of an element of a loop's tuple."""
        initial = self.module.computations[name][loop.operands[0]]
        if initial.opcode != "tuple":
            return None
        return self.module.computations[name][initial.operands[index]], name

    def _is_unchanged(self, loop: Instruction, index: int) -> bool:
        body = self.module.computations[loop.attribute("body").lstrip("%")]
        root = next(instruction for instruction in body.values() if instruction.root)
        if root.opcode != "tuple":
            return False
        output = body[root.operands[index]]
        while output.opcode == "copy":
            output = body[output.operands[0]]
        if output.opcode != "get-tuple-element" or int(output.attribute("index")) != index:
            return False
        return body[output.operands[0]].opcode == "parameter"

    def _moved(self, fusion: Instruction) -> int | None:
        """Return which operand of a fusion the result is another form of, if any."""
        inner = self.module.computations.get(fusion.attribute("calls").lstrip("%"), {})
        origin = next((line for line in inner.values() if line.root), None)
        while origin is not None and origin.opcode in MOVES:
            origin = _largest(origin, inner)
        return int(origin.inside) if origin is not None and origin.opcode == "parameter" else None


def _largest(instruction: Instruction, computation: Computation) -> Instruction | None:
    sources = [computation[name] for name in instruction.operands if name in computation]
    return max(sources, key=lambda source: sum(kind.bytes for kind in source.types), default=None)


def _callers(module: Module) -> Mapping[str, tuple[Instruction, str]]:
    callers = {}
    for name, computation in module.computations.items():
        for instruction in computation.values():
            if re.search(r"calls=|body=|to_apply=|computation", instruction.attributes):
                for called in instruction.called:
                    callers.setdefault(called, (instruction, name))
    return callers

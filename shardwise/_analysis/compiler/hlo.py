"""Parse the text of an HLO module: computations, instructions, types and source frames.

The text is not interpreted here; `sent` and `shardings` do that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from ..._jax import Frame

WIDTHS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}
"""Bits of the types whose names do not state them."""

NAMES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
KINDS = {"f": "float", "s": "int", "u": "uint"}


@dataclasses.dataclass(frozen=True)
class Type:
    """The type of one array."""

    element: str
    """The HLO name: `f32`, `bf16`, `pred`."""
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The JAX name: `float32`."""
        if self.element in NAMES:
            return NAMES[self.element]
        if match := re.fullmatch(r"([fsu])(\d+)(e\w+)?", self.element):
            kind, bits, format_ = match.groups()
            return f"{KINDS[kind]}{bits}_{format_}" if format_ else f"{KINDS[kind]}{bits}"
        return self.element

    @property
    def bytes(self) -> int:
        """The bytes of the whole array."""
        return -(-math.prod(self.shape) * _bits(self.element) // 8)


def _bits(element: str) -> int:
    if element in WIDTHS:
        return WIDTHS[element]
    match = re.match(r"[a-z]+(\d+)", element)
    return int(match[1]) if match else 0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    types: tuple[Type, ...]
    """The types of its result; several for a tuple, which is flattened."""
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    """Everything after the operands."""
    root: bool
    inside: str = ""
    """The text between the parentheses: a constant's value, a parameter's number."""

    def attribute(self, name: str) -> str:
        """Return an attribute as text, including balanced braces; empty if it is missing."""
        match = re.search(rf"(?:^|[\s,]){name}=", self.attributes)
        if match is None:
            return ""
        tail = self.attributes[match.end() :]
        if tail[0] in "{[":
            return tail[: _balanced(tail)]
        return re.match(r'"(?:[^"\\]|\\.)*"|[^\s,]+', tail)[0]  # pyright: ignore

    @functools.cached_property
    def op_name(self) -> str:
        """The path of JAX transformations and primitives that it comes from."""
        match = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1] if match else ""

    @property
    def frame(self) -> int:
        """The number of its innermost stack frame; 0 for none."""
        match = re.search(r"stack_frame_id=(\d+)", self.attributes)
        return int(match[1]) if match else 0

    @property
    def called(self) -> tuple[str, ...]:
        """The computations that run with it, in order."""
        if self.opcode in ("async-update", "async-done"):  # they name what async-start runs
            return ()
        called = []
        for name in ("condition", "body", "calls", "to_apply", "called_computations"):
            called += re.findall(r"%?([\w.\-]+)", self.attribute(name).strip("{}"))
        if self.opcode == "conditional":
            called += self.branches
        return tuple(called)

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches of a conditional."""
        text = self.attribute("branch_computations")
        text = text or f"{self.attribute('true_computation')} {self.attribute('false_computation')}"
        return tuple(re.findall(r"%?([\w.\-]+)", text))

    @property
    def trips(self) -> int | None:
        """The trip count of a loop, if the compiler knows it."""
        match = re.search(r'"known_trip_count":\s*\{"n":\s*"(\d+)"', self.attributes)
        return int(match[1]) if match else None


Computation = dict[str, Instruction]
"""The instructions of a computation by name, in order."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A whole module."""

    computations: dict[str, Computation]
    entry: str
    frames: dict[int, tuple[Frame, int]]
    """Each stack frame with the number of its parent; 0 for none."""

    def stack(self, instruction: Instruction) -> Iterator[Frame]:
        """Yield the frames of an instruction, the innermost first."""
        number = instruction.frame
        while number in self.frames:
            frame, number = self.frames[number]
            yield frame


def parse(text: str) -> Module:
    """Parse the text of a module."""
    head, lines = _tables(text.splitlines())
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in lines:
        if line.startswith(" "):
            if (instruction := instruction_of(line)) is not None:
                for name in instruction.operands:
                    if "#" in name and name not in current:
                        current[name] = _element(name, current)
                current[instruction.name] = instruction
        elif match := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            current = computations.setdefault(match[2], {})
            entry = match[2] if match[1] else entry
    return Module(computations, entry, _frames(head))


def instruction_of(line: str) -> Instruction | None:
    """Parse one line of a computation; None if it is not an instruction."""
    match = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if match is None:
        return None
    tail = line[match.end() :]
    end = _balanced(tail) if tail[0] == "(" else tail.index(" ")
    types, tail = tail[:end], tail[end:].lstrip()
    opcode, _, _ = tail.partition("(")
    tail = tail[len(opcode) :]
    end = _balanced(tail)
    arguments = tail[1 : end - 1]
    names = () if opcode in ("constant", "parameter") else re.findall(r"%([\w.\-#]+)", arguments)
    return Instruction(
        match[2], _types(types), opcode, tuple(names), tail[end:], bool(match[1]), arguments
    )


def _element(name: str, computation: Computation) -> Instruction:
    """Return an instruction for a tuple element that is written as `%tuple#1` where it is used."""
    source, _, index = name.partition("#")
    types = computation[source].types[int(index) : int(index) + 1]
    return Instruction(name, types, "get-tuple-element", (source,), f", index={index}", False)


def _types(text: str) -> tuple[Type, ...]:
    return tuple(
        Type(element, tuple(int(size.lstrip("<=")) for size in shape.split(",") if size))
        for element, shape in re.findall(r"\b([a-z]\w*)\[([\d,<=]*)\]", text)
    )


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[(\[{]|[)\]}]')


def _balanced(text: str) -> int:
    """Return the end of the bracketed text at the start, ignoring brackets in strings."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
            if not depth:
                return match.end()
    return len(text)


# --- source frames

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def _tables(lines: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split a module into the source location tables at its head, and the lines after them."""
    tables: dict[str, list[str]] = {name: [] for name in _TABLES}
    current: list[str] | None = None
    for number, line in enumerate(lines):
        if line in tables:
            current = tables[line]
        elif current is not None and line[:1].isdigit():
            current.append(line)
        elif line and not line.startswith("HloModule"):
            return tables, lines[number:]
    return tables, []


def _frames(tables: dict[str, list[str]]) -> dict[int, tuple[Frame, int]]:
    files, functions = _strings(tables["FileNames"]), _strings(tables["FunctionNames"])
    places = {}
    for line in tables["FileLocations"]:
        number, fields = _fields(line)
        places[number] = Frame(
            files.get(fields.get("file_name_id", 0), ""),
            fields.get("line", 0),
            functions.get(fields.get("function_name_id", 0), ""),
            fields.get("column", 0),
            fields.get("end_column", 0),
        )
    frames = {}
    for line in tables["StackFrames"]:
        number, fields = _fields(line)
        # The text stores the parent's number plus one.
        parent = fields.get("parent_frame_id", 1) - 1
        frames[number] = places[fields["file_location_id"]], parent if parent != number else 0
    return frames


def _strings(lines: list[str]) -> dict[int, str]:
    strings = {}
    for line in lines:
        number, _, text = line.partition(" ")
        strings[int(number)] = text.strip()[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return strings


def _fields(line: str) -> tuple[int, dict[str, int]]:
    number, _, text = line.partition(" ")
    return int(number), {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}

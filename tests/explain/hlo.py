"""The collectives of a compiled program, read off the text of its optimised HLO."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
INSTRUCTION = re.compile(rf"= (?P<type>.+?) (?P<kind>{KINDS})(?:-start)?\(")
COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>\S+) \(.*\{$")
CALLED = re.compile(
    r"(?:condition|body|calls|to_apply|true_computation|false_computation)=%([^\s,}]+)"
    r"|branch_computations=\{([^}]*)\}"
)
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')

Sent = tuple[str, int, int]
"""The kind of a collective, its group size, the bytes of one operand."""


def collectives(text: str) -> collections.Counter[Sent]:
    """How often each kind of operand is sent, loops multiplied out.

    Several operands of one instruction count one by one: XLA combines collectives of a kind into
    one instruction, which sends the same bytes in fewer messages.
    """
    found: collections.Counter[Sent] = collections.Counter()
    computations = dict(_computations(text))
    _collect(computations, computations["ENTRY"], 1, found)
    return found


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", []
    for line in text.splitlines():
        head = COMPUTATION.match(line)
        if head:
            name, lines = "ENTRY" if head["entry"] else head["name"], []
        elif line.startswith("}"):
            yield name, lines
        else:
            lines.append(line)


def _collect(
    computations: dict[str, list[str]],
    lines: list[str],
    times: int,
    found: collections.Counter[Sent],
) -> None:
    for line in lines:
        match = INSTRUCTION.search(line)
        if match:
            size = group_size(line)
            for operand in _operands(match["type"], match["kind"], size):
                found[match["kind"], size, operand] += times
            continue
        trips = TRIPS.search(line)
        assert trips or " while(" not in line, f"a loop without a trip count: {line}"
        for one, several in CALLED.findall(line):
            for name in [one] if one else re.findall(r"%([^\s,]+)", several):
                inner = times * int(trips[1]) if trips else times
                _collect(computations, computations.get(name, []), inner, found)


def _operands(types: str, kind: str, size: int) -> list[int]:
    """Bytes of each operand, from the types of the results."""
    results = [
        BYTES[dtype] * math.prod(map(int, filter(None, shape.split(","))))
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", types)
    ]
    if kind == "all-to-all":  # one instruction with a result for each device
        return [sum(results)]
    if kind == "all-gather":
        return [result // size for result in results]
    return [result * size if kind == "reduce-scatter" else result for result in results]


def group_size(line: str) -> int:
    """How many devices exchange something, in each of the ways that XLA writes groups."""
    explicit = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if explicit:
        return len(explicit[1].split(","))
    iota = re.search(r"replica_groups=\[\d+,(\d+)\]<=", line)
    if iota:
        return int(iota[1])
    axes = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\S+)? \{([^}]*)\}", line)
    if axes:
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes[1])}
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", axes[2])
        return math.prod(int(part) if part else sizes[name] for name, part in parts)
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", line)
    assert pairs, line
    return len(set(re.findall(r"\d+", pairs[1])))

"""The data of an inspection, from which text and pages are made."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..._base.errors import ArgumentError, ShardwiseError, a_type, explain_error
from ..._base.numbers import short_dtype
from ..._base.plain import Plain
from ..._program import Where

WHOLE = 64
"""The most elements of an array that are kept whole; a larger one is kept as its range."""


EDGES = ("input", "result")
"""The kinds of values that go into a `shard_map` or come out of it."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a value on one device: all of a small array, the range of a large one."""

    shape: tuple[int, ...]
    dtype: str
    numbers: np.ndarray
    """The array itself, or the first few elements of a large one."""
    least: float | int | None = None
    most: float | int | None = None
    mean: float | None = None
    mark: int | None = None
    """A hash of all elements of a large one."""

    @property
    def whole(self) -> bool:
        """Whether all elements are kept."""
        return self.least is None

    def same(self, other: Part) -> bool:
        """Return whether two parts are equal."""
        return self.mark == other.mark and bool(
            np.array_equal(self.numbers, other.numbers, equal_nan=_inexact(self.numbers))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the part as plain data; NaN and infinities are strings."""
        if self.whole:
            return {"values": plain(self.numbers)}
        return {
            "first": plain(self.numbers),
            "min": plain(self.least),
            "max": plain(self.most),
            "mean": plain(self.mean),
        }


@dataclasses.dataclass(frozen=True)
class Device:
    """Devices with equal parts: their coordinates, and the part."""

    at: tuple[dict[str, int], ...]
    part: Part


@dataclasses.dataclass(frozen=True)
class Step:
    """One value of a program: where it is computed, and its part on each device."""

    number: int
    operation: str
    """What computes it: a primitive of JAX, or a collective with its axes."""
    kind: str
    """`input`, `value`, `collective` (devices communicate), `loop`, `derivative` or `result`.

    A `derivative` is a result of `grad` or `value_and_grad`, at the line of that call.
    """
    where: Where
    name: str
    """Its name in the source, if it has one."""
    shape: tuple[int, ...]
    """The shape of the part of one device."""
    dtype: str
    over: tuple[str, ...]
    """The mesh axes along which the parts of the devices may differ; empty if all are equal."""
    parts: Mapping[tuple[int, ...], Part] = dataclasses.field(repr=False)
    """A part for each coordinate along `over`."""
    iteration: tuple[int, ...] = ()
    """In loops, the iteration of each loop around it, from 0."""
    direction: str = "forward"
    """Its pass: `forward`, `backward` or `update`, which is computed from gradients."""
    saved: bool = False
    """Whether only the backward pass uses it: it has no name in the source."""
    only: tuple[dict[str, int], ...] | None = None
    """The devices that take the branch it is in, if not all do."""
    meaning: str | None = None
    """What the value is of the global array, if known."""
    leaf: str = ""
    """The leaf of the result that a result, or a value of the update, becomes."""

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass of a derivative."""
        return self.direction == "backward"

    @property
    def title(self) -> str:
        """A description: `total = psum over data`, `x, as in_specs split it`."""
        if self.kind == "input":
            detail = (
                "as in_specs split it" if self.operation == "in_specs" else "whole on each device"
            )
            return f"{self.name or 'an input'}, {detail}"
        if self.kind == "result":
            return f"{self.leaf or 'the whole'}, as out_specs put it together"
        name = f"{self.name} {self.leaf}".strip()
        return f"{name} = {self.operation}" if name else self.operation

    @property
    def meets(self) -> bool:
        """Whether devices communicate here."""
        return self.kind == "collective"

    @property
    def array(self) -> str:
        """Its dtype and shape in short: `f32[2,3]`."""
        return f"{short_dtype(self.dtype)}[{','.join(map(str, self.shape))}]"

    def groups(self) -> list[Device]:
        """Return the distinct parts, each with its devices, in order of the devices."""
        groups: list[tuple[list[dict[str, int]], Part]] = []
        for at, part in self.parts.items():
            coordinate = dict(zip(self.over, at, strict=True))
            if self.only is not None and not any(
                _within(coordinate, selected) for selected in self.only
            ):
                continue
            for devices, group_part in groups:
                if part.same(group_part):
                    devices.append(coordinate)
                    break
            else:
                groups.append(([coordinate], part))
        return [Device(tuple(devices), part) for devices, part in groups]

    def at(self, **coordinates: int) -> np.ndarray:
        """Return the part of the device at these coordinates; the first elements of a large
        array."""
        key = tuple(coordinates.get(name, 0) for name in self.over)
        if key not in self.parts:
            raise ShardwiseError(
                f"there is no device at {coordinates}",
                where=f"value {self.number}",
                rule=f"It differs over {', '.join(self.over) or 'no axis'}.",
            )
        return self.parts[key].numbers

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        return {
            "number": self.number,
            "operation": self.operation,
            "kind": self.kind,
            "name": self.name,
            "where": self.where.to_dict(),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "differs_over": list(self.over),
            "iteration": list(self.iteration),
            "pass": self.direction,
            "backward": self.backward,
            "saved": self.saved,
            "title": self.title,
            "only": None if self.only is None else list(self.only),
            "meaning": self.meaning,
            "held": [
                {"devices": list(group.at), **group.part.to_dict()} for group in self.groups()
            ],
        }


@dataclasses.dataclass(frozen=True)
class Stop:
    """Consecutive values of one line, in one pass and one iteration of the loops around it."""

    where: Where
    iteration: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def mark(self) -> str:
        """The name of the pass to show beside the line; empty for forward."""
        if _goes_back(self.steps[0]):
            return "backward pass"
        inner = (s for s in self.steps if s.kind not in EDGES)
        return "update" if any(s.direction == "update" for s in inner) else ""

    @property
    def shown(self) -> tuple[Step, ...]:
        """The values to show by default: named ones, collectives, inputs, and the last of the line.

        There may be none: values that only the backward pass uses are left out.
        """
        visible = [s for s in self.steps if not s.saved and not (s.backward and _is_passed_on(s))]
        return tuple(s for s in visible if s.name or s.kind != "value" or s is visible[-1])


@dataclasses.dataclass(frozen=True)
class InspectionData(Plain):
    """A whole inspection: every value of a sharded program in program order.

    Functions that print, draw or save an inspection take this class; `Inspection` has them as
    methods.
    """

    name: str
    """The function."""
    mesh: Mapping[str, int]
    """Axis names and sizes."""
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    """Notes on what is not shown, and why."""
    deadlock: str = ""
    """The deadlock that ends the program, if there is one."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def stops(self) -> list[Stop]:
        """The steps grouped by line, in program order."""
        grouped = itertools.groupby(
            self.steps, lambda s: (s.where.file, s.where.line, s.iteration, _goes_back(s))
        )
        groups = [(key, tuple(steps)) for key, steps in grouped]
        return [Stop(steps[-1].where, key[2], steps) for key, steps in groups]

    def at(self, line: int | str | None = None, where: str | None = None) -> Self:
        """Return the values of a line (`12`, `"train.py:12"`) or that match a word.

        A word is the name of a value, an operation (`"psum"`) or a function; if there is none, a
        part of the source line.
        """
        if where is not None and not isinstance(where, str):
            raise ArgumentError(
                f"where is {a_type(where)}",
                where="sw.inspect",
                rule="It is a word: the name of a value, an operation or a function.",
                remedy='where="grads"; line=12 is a line.',
            )
        on_line = [s for s in self.steps if _on_line(s, line)]
        by_name = [s for s in on_line if where in _names(s)] if where else on_line
        matches = tuple(by_name or [s for s in on_line if where and where in s.where.text])
        if not matches and self.steps:
            raise ShardwiseError(_nothing(self, line, where))
        return dataclasses.replace(self, steps=matches)


def _is_passed_on(step: Step) -> bool:
    """Return whether it is only passed on: into a `shard_map`, or past a barrier of
    `jax.checkpoint`."""
    return step.kind == "input" or step.operation == "optimization_barrier"


def _goes_back(step: Step) -> bool:
    """Return whether it is a value of the backward pass, other than the result of a `grad`."""
    return step.backward and step.kind != "derivative"


def _within(coordinate: Mapping[str, int], region: Mapping[str, int]) -> bool:
    return all(region.get(name, position) == position for name, position in coordinate.items())


def _on_line(step: Step, line: int | str | None) -> bool:
    if line is None:
        return True
    file, _, number = str(line).rpartition(":")
    return number == str(step.where.line) and step.where.file.endswith(file)


def _names(step: Step) -> tuple[str, ...]:
    return step.name, step.operation, step.operation.partition(" ")[0], step.where.function


def _nothing(inspection: InspectionData, line: int | str | None, where: str | None) -> str:
    lines = sorted({step.where.line for step in inspection.steps if step.where.file})
    names = dict.fromkeys(step.name for step in inspection.steps if step.name)
    names = [repr(name) if "," in name else name for name in names]
    number = str(line).rpartition(":")[2]
    if line is not None and not number.isdigit():
        return explain_error(
            f"line is {line!r}",
            where="sw.inspect",
            rule="A line is a number, or a file and a number: 12, or 'step.py:12'.",
            remedy=f"for what has this name: where={line!r}.",
        )
    request = " and ".join(
        part for part in (f"line {line}" * (line is not None), f"{where!r}" * bool(where)) if part
    )
    return explain_error(
        f"no value is computed at {request}",
        where="sw.inspect",
        rule=_lines_text(lines),
        remedy=f"ask for one of these, or for a name: {', '.join(names)}." if names else "",
    )


def _lines_text(lines: list[int]) -> str:
    """Return on which lines there are values, as a sentence."""
    if not lines:
        return "No line of the program is known."
    numbers = ", ".join(map(str, lines))
    return f"Values are computed on line{'s' * (len(lines) > 1)} {numbers}."


def plain(value: Any) -> Any:
    """Return numbers for JSON; NaN and infinities as strings."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, float) and (value != value or value in (np.inf, -np.inf)):
        return str(value)
    return value


def _inexact(array: np.ndarray) -> bool:
    return array.dtype.kind in "fc"

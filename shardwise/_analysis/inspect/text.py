"""An inspection for a terminal: line by line, one row for each part that devices hold."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from .data import Device, InspectionData, Part, Step, Stop

ROWS = 8
"""The most distinct parts of a value that are shown."""

DIGITS = range(6, 18, 2)
"""The numbers of decimals to try for parts that look equal with four."""

INPUTS = 12
"""The most replicated arguments that are shown."""


def text(inspection: InspectionData, every: bool) -> str:
    """Return the text of an inspection."""
    mesh = "{" + ", ".join(f"{name}: {size}" for name, size in inspection.mesh.items()) + "}"
    count = len(inspection.steps)
    lines = [f"{inspection.name} on {mesh}: {count} value{'s' * (count != 1)}"]
    hidden = 0
    for stop in inspection.stops:
        steps = stop.steps if every else _fewer(stop.shown)
        hidden += len(stop.steps) - len(steps)
        lines += ["", _head(stop)] if steps else []
        for step in steps:
            lines += _step(step)
    if inspection.deadlock:
        lines += ["", f"DEADLOCK: {inspection.deadlock}"]
    if hidden:
        singular = hidden == 1
        subject = (
            "1 value in the middle of a line is"
            if singular
            else f"{hidden} values in the middle of lines are"
        )
        pronoun = "it" if singular else "them"
        lines += [
            "",
            f"{subject} left out; text(every=True), or --every on the command line, has {pronoun}.",
        ]
    lines += [f"Note: {note}" for note in inspection.notes]
    return "\n".join(lines)


def _fewer(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without further replicated arguments, such as parameters."""
    replicated = [s for s in steps if s.kind == "input" and not s.over]
    return [s for s in steps if s not in replicated[INPUTS:]]


def _head(stop: Stop) -> str:
    iteration = (
        f"iteration {', '.join(str(t + 1) for t in stop.iteration)}" if stop.iteration else ""
    )
    details = ", ".join(filter(None, [stop.mark, iteration]))
    location = f"{stop.where.file.rpartition('/')[2]}:{stop.where.line}" if stop.where.file else "?"
    return f"{location} | {stop.where.text}{f'  ({details})' if details else ''}"


def _step(step: Step) -> list[str]:
    saved = ", kept for the backward pass" if step.saved else ""
    partial = " (only some devices come here)" if step.only is not None else ""
    meaning = f", {step.meaning}" if step.meaning else ""
    head = f"  {step.title}: {step.array}{meaning}{saved}{partial}"
    groups = step.groups()
    entries = rows(step, groups[:ROWS])
    if not step.over:
        owner = "all devices" if step.kind != "result" else "result"
        return [head, *(f"    {owner}  {row}" for _, row in entries)]
    width = max((len(devices) for devices, _ in entries), default=0)
    lines = [f"    {devices:<{width}}  {row}" for devices, row in entries]
    if len(groups) > ROWS:
        lines.append(f"    and {len(groups) - ROWS} more, all different")
    return [head, *lines]


def rows(step: Step, groups: Sequence[Device]) -> list[tuple[str, str]]:
    """Return the devices and numbers of each group, with enough digits to distinguish the
    groups."""
    first = [numbers(group.part) for group in groups]
    finer = ([numbers(group.part, digits) for group in groups] for digits in DIGITS)
    distinct = next(
        (
            candidate
            for candidate in itertools.chain([first], finer)
            if len(set(candidate)) == len(groups)
        ),
        first,
    )
    labels = (place(step.over, group.at) for group in groups)
    return list(zip(labels, distinct, strict=True))


def place(over: Sequence[str], at: Sequence[Mapping[str, int]]) -> str:
    """Return coordinates as text: `data 0`, `data 0..3`, `data 1, model 0`."""
    columns = {name: sorted({coordinate[name] for coordinate in at}) for name in over}
    if len(at) == np.prod([len(column) for column in columns.values()], dtype=int):
        return ", ".join(f"{name} {_ranges(column)}" for name, column in columns.items())
    first = ", ".join(f"{name} {at[0][name]}" for name in over)
    return f"{first} and {len(at) - 1} more"


def _ranges(values: list[int]) -> str:
    if len(values) > 1 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return "+".join(map(str, values))


def numbers(part: Part, digits: int = 4) -> str:
    """Return the numbers of a part on one line."""
    width = shutil.get_terminal_size((100, 24)).columns
    if part.whole:
        return _array(part.numbers, width, digits)
    first = _array(part.numbers, width, digits).strip("[]")
    least, most = (
        str(bound) if isinstance(bound, int) else f"{bound:.{digits + 1}g}"
        for bound in (part.least, part.most)
    )
    return f"from {least} to {most}, mean {part.mean:.{digits}g}: [{first} ...]"


def _array(array: np.ndarray, wide: int, digits: int) -> str:
    printed = np.array2string(
        array, precision=digits, suppress_small=digits == 4, max_line_width=100_000, threshold=80
    )
    line = " ".join(printed.split())
    room = max(40, wide - 24)
    return line if len(line) <= room else line[: room - 4] + " ..."

"""An inspection for a terminal: line by line, one row for each part that devices hold."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from .data import Device, Facts, Part, Step, Stop

ROWS = 8
"""The most distinct parts of a value that are shown."""

DIGITS = range(6, 18, 2)
"""The numbers of decimals to try for parts that look equal with four."""

INPUTS = 12
"""The most replicated arguments that are shown."""


def text(found: Facts, every: bool) -> str:
    """Return the text of an inspection."""
    mesh = "{" + ", ".join(f"{name}: {size}" for name, size in found.mesh.items()) + "}"
    count = len(found.steps)
    lines = [f"{found.name} on {mesh}: {count} value{'s' * (count != 1)}"]
    hidden = 0
    for stop in found.stops:
        shown = stop.steps if every else _fewer(stop.shown)
        hidden += len(stop.steps) - len(shown)
        lines += ["", _head(stop)] if shown else []
        for step in shown:
            lines += _step(step)
    if found.deadlock:
        lines += ["", f"DEADLOCK: {found.deadlock}"]
    if hidden:
        one = hidden == 1
        left = (
            "1 value in the middle of a line is"
            if one
            else f"{hidden} values in the middle of lines are"
        )
        has = "it" if one else "them"
        lines += [
            "",
            f"{left} left out; text(every=True), or --every on the command line, has {has}.",
        ]
    lines += [f"Note: {note}" for note in found.notes]
    return "\n".join(lines)


def _fewer(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without further replicated arguments, such as parameters."""
    whole = [s for s in steps if s.kind == "input" and not s.over]
    return [s for s in steps if s not in whole[INPUTS:]]


def _head(stop: Stop) -> str:
    iteration = (
        f"iteration {', '.join(str(t + 1) for t in stop.iteration)}" if stop.iteration else ""
    )
    about = ", ".join(filter(None, [stop.mark, iteration]))
    where = f"{stop.where.file.rpartition('/')[2]}:{stop.where.line}" if stop.where.file else "?"
    return f"{where} | {stop.where.text}{f'  ({about})' if about else ''}"


def _step(step: Step) -> list[str]:
    saved = ", kept for the backward pass" if step.saved else ""
    some = " (only some devices come here)" if step.only is not None else ""
    means = f", {step.meaning}" if step.meaning else ""
    head = f"  {step.title}: {step.array}{means}{saved}{some}"
    groups = step.groups()
    shown = rows(step, groups[:ROWS])
    if not step.over:
        mark = "all devices" if step.kind != "result" else "result"
        return [head, *(f"    {mark}  {row}" for _, row in shown)]
    width = max((len(devices) for devices, _ in shown), default=0)
    lines = [f"    {devices:<{width}}  {row}" for devices, row in shown]
    if len(groups) > ROWS:
        lines.append(f"    and {len(groups) - ROWS} more, all different")
    return [head, *lines]


def rows(step: Step, groups: Sequence[Device]) -> list[tuple[str, str]]:
    """Return the devices and numbers of each group, with enough digits to distinguish the
    groups."""
    first = [numbers(group.part) for group in groups]
    more = ([numbers(group.part, digits) for group in groups] for digits in DIGITS)
    apart = next(
        (one for one in itertools.chain([first], more) if len(set(one)) == len(groups)), first
    )
    where = (place(step.over, group.at) for group in groups)
    return list(zip(where, apart, strict=True))


def place(over: Sequence[str], at: Sequence[Mapping[str, int]]) -> str:
    """Return coordinates as text: `data 0`, `data 0..3`, `data 1, model 0`."""
    columns = {name: sorted({one[name] for one in at}) for name in over}
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
    wide = shutil.get_terminal_size((100, 24)).columns
    if part.whole:
        return _array(part.numbers, wide, digits)
    first = _array(part.numbers, wide, digits).strip("[]")
    least, most = (
        str(one) if isinstance(one, int) else f"{one:.{digits + 1}g}"
        for one in (part.least, part.most)
    )
    return f"from {least} to {most}, mean {part.mean:.{digits}g}: [{first} ...]"


def _array(array: np.ndarray, wide: int, digits: int) -> str:
    shown = np.array2string(
        array, precision=digits, suppress_small=digits == 4, max_line_width=100_000, threshold=80
    )
    line = " ".join(shown.split())
    room = max(40, wide - 24)
    return line if len(line) <= room else line[: room - 4] + " ..."

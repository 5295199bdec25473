"""An inspection for a terminal: line by line, one row for each part that devices hold."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from .data import Device, Facts, Part, Step, Stop

ROWS = 8
"""How many different parts of a value are shown, at most."""

INPUTS = 12
"""How many arguments that each device has whole are shown, at most."""


def text(found: Facts, every: bool) -> str:
    """The whole of it."""
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
    """Of many arguments that each device has whole, such as parameters, the first."""
    whole = [s for s in steps if s.kind == "input" and not s.over]
    return [s for s in steps if s not in whole[INPUTS:]]


def _head(stop: Stop) -> str:
    turn = f"turn {', '.join(str(t + 1) for t in stop.turn)}" if stop.turn else ""
    about = ", ".join(filter(None, [stop.mark, turn]))
    where = f"{stop.where.file.rpartition('/')[2]}:{stop.where.line}" if stop.where.file else "?"
    return f"{where} | {stop.where.text}{f'  ({about})' if about else ''}"


def _step(step: Step) -> list[str]:
    saved = ", kept for the backward pass" if step.saved else ""
    some = " (only some devices come here)" if step.only is not None else ""
    means = f", {step.meaning}" if step.meaning else ""
    head = f"  {step.title}: {step.array}{means}{saved}{some}"
    groups = step.groups()
    if not step.over:
        mark = "all devices" if step.kind != "result" else "result"
        return [head, f"    {mark}  {numbers(groups[0].part)}"] if groups else [head]
    label = [devices(step, group) for group in groups[:ROWS]]
    width = max(map(len, label), default=0)
    rows = [
        f"    {one:<{width}}  {numbers(group.part)}"
        for one, group in zip(label, groups, strict=False)
    ]
    if len(groups) > ROWS:
        rows.append(f"    and {len(groups) - ROWS} more, all different")
    return [head, *rows]


def devices(step: Step, group: Device) -> str:
    """The devices of a group in words: `data 0`, `data 0..3`, `data 1, model 0`."""
    return place(step.over, group.at)


def place(over: Sequence[str], at: Sequence[Mapping[str, int]]) -> str:
    """Coordinates in words."""
    columns = {name: sorted({one[name] for one in at}) for name in over}
    if len(at) == np.prod([len(column) for column in columns.values()], dtype=int):
        return ", ".join(f"{name} {_ranges(column)}" for name, column in columns.items())
    first = ", ".join(f"{name} {at[0][name]}" for name in over)
    return f"{first} and {len(at) - 1} more"


def _ranges(values: list[int]) -> str:
    if len(values) > 1 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return "+".join(map(str, values))


def numbers(part: Part) -> str:
    """The numbers of a part on one line."""
    wide = shutil.get_terminal_size((100, 24)).columns
    if part.whole:
        return _array(part.numbers, wide)
    first = _array(part.numbers, wide).strip("[]")
    return f"from {part.least:.5g} to {part.most:.5g}, mean {part.mean:.4g}: [{first} ...]"


def _array(array: np.ndarray, wide: int) -> str:
    shown = np.array2string(
        array, precision=4, suppress_small=True, max_line_width=100_000, threshold=80
    )
    line = " ".join(shown.split())
    room = max(40, wide - 24)
    return line if len(line) <= room else line[: room - 4] + " ..."

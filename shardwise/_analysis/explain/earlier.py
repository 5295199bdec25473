"""Compare a report with an earlier one: which collectives are new, gone, or changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._base.errors import ShardwiseError
from ..._base.plain import Plain
from . import units
from .facts import ReportData


@dataclasses.dataclass(frozen=True)
class Difference(Plain):
    """Collectives of one kind and line, in both reports."""

    name: str
    axes: tuple[str, ...]
    direction: str
    line: str
    """`train.py:31`, the line in the newer report if it is there."""
    text: str
    before: int
    """Bytes that one device sends in one call."""
    after: int

    def __str__(self) -> str:
        sizes = f"{units.size(self.before)} → {units.size(self.after)}"
        sign = "+" if not self.before else "-" if not self.after else "~"
        axes = units.axes(self.axes)
        return (
            f"{sign} {self.name} over {axes}, {self.direction}: {sizes}  {self.line}: {self.text}"
        )


@dataclasses.dataclass(frozen=True)
class Changes(Plain):
    """The changes since an earlier report."""

    before: int
    after: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        head = f"One device sends {units.size(self.after)}, before {units.size(self.before)}."
        if not self.differences:
            return f"{head} The same collectives from the same lines."
        return "\n".join([head, *map(str, self.differences)])


def changes_since(path: Path, report: ReportData) -> Changes:
    """Compare a report with one of the same program in a JSON file."""
    old = _read(path, report.name)
    before, after = _grouped(old["collectives"]), _grouped(report.to_dict()["collectives"])
    changes = tuple(sorted(_differences(before, after), key=lambda row: row.before - row.after))
    return Changes(int(old["bytes_sent"]), report.bytes_sent, changes)


Key = tuple[str, tuple[str, ...], str, str, str]


def _grouped(rows: list[Mapping[str, Any]]) -> dict[Key, tuple[int, int]]:
    """Group bytes by kind and source text, since line numbers change when lines are inserted."""
    groups: dict[Key, tuple[int, int]] = {}
    for row in rows:
        line = row["where"]
        file = Path(line["file"]).name
        key = row["name"], tuple(row["axes"]), row["direction"], file, line["text"]
        total, _ = groups.get(key, (0, 0))
        bytes_sent = row["total_bytes"] if row["counted"] else 0
        groups[key] = total + bytes_sent, line["line"]
    return groups


def _differences(
    before: dict[Key, tuple[int, int]], after: dict[Key, tuple[int, int]]
) -> Iterator[Difference]:
    for key in dict.fromkeys([*after, *before]):
        name, axes, direction, file, text = key
        was, now = before.get(key, (0, 0)), after.get(key, (0, 0))
        if was[0] != now[0]:
            line = f"{file}:{now[1] or was[1]}" if file else "an argument"
            yield Difference(name, axes, direction, line, text, was[0], now[0])


def _read(path: Path, name: str) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _no_report(path, f"it cannot be read: {error}") from None
    reports = data if isinstance(data, list) else [{"report": data}]
    matches = [item.get("report") for item in reports if isinstance(item, Mapping)]
    matches = [item for item in matches if isinstance(item, Mapping) and "collectives" in item]
    if len(matches) > 1:
        matches = [item for item in matches if item.get("name") == name]
    if len(matches) != 1:
        raise _no_report(path, f"there is no report of {name} in it")
    return matches[0]


def _no_report(path: Path, what: str) -> ShardwiseError:
    return ShardwiseError(
        what,
        where=f"--against {path}",
        rule="It is compared with a report of the same program that was saved as JSON.",
        remedy="shardwise explain FILE.py --format json > old.json, or report.save('old.json')",
    )

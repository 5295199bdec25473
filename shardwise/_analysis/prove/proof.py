"""The result of `prove`: data first; text and HTML are derived from it."""

from __future__ import annotations

import collections
import dataclasses
import html
from typing import Any

from ..._base.calls import public_methods
from ..._base.errors import ShardwiseError
from ..._base.plain import Plain
from ..check import NOTHING, Every, Finding, counted, is_not_sharded, told_once

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
COLORS = {PROVED: "#1a873a", REFUTED: "#e0313d", UNKNOWN: "#a06b00"}


@dataclasses.dataclass(frozen=True)
class Result(Plain):
    """The status of one result on one mesh."""

    path: str
    """The path of the result: `result['params']['kernel']`."""
    mesh: str
    status: str
    """`"proved"`, `"refuted"` or `"unknown"`."""
    reason: str = ""
    """The reason why it is not proved, as a sentence."""


@public_methods("proof")
@dataclasses.dataclass(frozen=True)
class Proof:
    """The outcome of `prove`. True if every result is proved on every mesh."""

    status: str
    """`"proved"`, `"refuted"` (some result is wrong) or `"unknown"`."""
    results: tuple[Result, ...]
    findings: tuple[Finding, ...]
    meshes: tuple[str, ...]
    operations: int = 0
    """The number of operations that were read, on all meshes together."""
    numbers: str = ""
    """A sentence on the run of the program with small numbers, if it was run."""
    against: str = "itself on one device"
    """What the program was compared with."""
    name: str = ""
    silenced: tuple[Finding, ...] = ()
    """The findings that comments in the source silence; the status does not depend on this."""
    checked: str = ""
    """A line for each thing that was left out: sizes that the program does not accept, the part
    that the compiler partitions."""
    every: Every | None = None
    """The sizes of an axis that has a letter in place of a size, and those that were left out."""

    @property
    def ok(self) -> bool:
        """Whether every result is proved."""
        return self.status == PROVED

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = "\n".join([self._head(), self.checked] if self.checked else [self._head()])
        tail = [self.numbers] if self.numbers else []
        return "\n\n".join([head, *map(str, told_once(self.findings)), *tail])

    def __repr__(self) -> str:
        return str(self)

    def head(self, brief: bool = False) -> list[tuple[str, str]]:
        """Return pairs of a word and where it applies, the worst first: `proved`, `on 4 meshes`."""
        rows = [(kind, meshes) for kind, meshes in self.by_status().items() if meshes]
        right = NOTHING if is_not_sharded(self.findings) else PROVED
        suffix = f" of {len(self.meshes)}" if len(rows) > 1 else ""
        places = []
        for kind, meshes in rows:
            word = right if kind == PROVED else kind.upper()
            if self.every is not None:
                places.append((word, self.every.place(meshes)))
            elif brief and len(self.meshes) > 1:
                return [(word, f"on {len(meshes)}{suffix} meshes")]
            else:
                places.append((word, f"on {', '.join(meshes)}"))
        return places

    def by_status(self) -> dict[str, list[str]]:
        """Return the meshes with refuted results, with unknown results, and the others."""
        on: dict[str, set[str]] = collections.defaultdict(set)
        for result in self.results:
            on[result.mesh].add(result.status)
        rows: dict[str, list[str]] = {REFUTED: [], UNKNOWN: [], PROVED: []}
        for mesh in self.meshes:
            kinds = on[mesh] or {self.status}
            rows[next(kind for kind in rows if kind in kinds)].append(mesh)
        return rows

    def _head(self) -> str:
        parts = "; ".join(f"{status} {place}" for status, place in self.head())
        name = self.name or "the program"
        counts = collections.Counter(result.status for result in self.results)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in COLORS if counts[kind])
        count = len({result.path for result in self.results})
        results = f"{count} result{'s' * (count != 1)}"
        if len(self.meshes) > 1:
            kinds = f"all {next(iter(counts))}" if len(counts) == 1 else kinds
            results += f" on {len(self.meshes)} meshes"
        results += f": {kinds}" if kinds else ""
        quiet = f" ({counted(self.silenced)})" if self.silenced else ""
        return f"{name}: {parts}, against {self.against} ({results}){quiet}"

    def to_dict(self) -> dict[str, Any]:
        """Return the proof as plain data."""
        return {
            "name": self.name,
            "status": self.status,
            "ok": self.ok,
            "against": self.against,
            "meshes": list(self.meshes),
            "operations": self.operations,
            "results": [result.to_dict() for result in self.results],
            "findings": [finding.to_dict() for finding in self.findings],
            "silenced": [finding.to_dict() for finding in self.silenced],
            "numbers": self.numbers,
            "checked": self.checked,
            "every": self.every.to_dict() if self.every else None,
        }

    def raise_if_not_proved(self) -> Proof:
        """Raise `ShardwiseError` with the whole text unless everything is proved."""
        __tracebackhide__ = True  # pytest shows the caller's line
        if not self.ok:
            raise ShardwiseError(str(self))
        return self

    def _repr_html_(self) -> str:
        color = COLORS[self.status]
        head = html.escape(self._head())
        rows = "".join(_row(result) for result in self.results if result.status != PROVED)
        table = f"<table>{rows}</table>" if rows else ""
        items = "".join(f"<pre>{html.escape(str(finding))}</pre>" for finding in self.findings)
        tail = f"<p>{html.escape(self.numbers)}</p>" if self.numbers else ""
        part = f"<p>{html.escape(self.checked)}</p>" if self.checked else ""
        return f'<div><b style="color:{color}">{head}</b>{part}{table}{items}{tail}</div>'


def _row(result: Result) -> str:
    color = COLORS[result.status]
    cells = (result.path, result.mesh, result.status, result.reason)
    style = f' style="color:{color}"'
    return "<tr>" + "".join(f"<td{style}>{html.escape(cell)}</td>" for cell in cells) + "</tr>"

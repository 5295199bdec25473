"""The result of `prove`: data first; text and HTML are derived from it."""

from __future__ import annotations

import collections
import dataclasses
import html
from typing import Any

from ..._base.calls import public_methods
from ..._base.errors import ShardwiseError
from ..check import NOTHING, Finding, counted, is_not_sharded, told_once

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
COLORS = {PROVED: "#1a873a", REFUTED: "#e0313d", UNKNOWN: "#a06b00"}


@dataclasses.dataclass(frozen=True)
class Result:
    """The status of one result on one mesh."""

    path: str
    """The path of the result: `result['params']['kernel']`."""
    mesh: str
    status: str
    """`"proved"`, `"refuted"` or `"unknown"`."""
    reason: str = ""
    """The reason why it is not proved, as a sentence."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return dataclasses.asdict(self)


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
    """A sentence on which part was checked, if the compiler partitions the rest of the program."""

    @property
    def ok(self) -> bool:
        """Whether every result is proved."""
        return self.status == PROVED

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = "\n".join([self._head(), self.checked] if self.checked else [self._head()])
        return "\n\n".join([head, *map(str, told_once(self.findings)), *self._tail()])

    def __repr__(self) -> str:
        return str(self)

    def head(self, brief: bool = False) -> list[tuple[str, str]]:
        """Return pairs of a word and the meshes it applies to, the worst first."""
        rows = self.by_status().items()
        right = NOTHING if is_not_sharded(self.findings) else PROVED
        rows = [
            (right if kind == PROVED else kind.upper(), meshes) for kind, meshes in rows if meshes
        ]
        if brief and len(self.meshes) > 1:
            suffix = f" of {len(self.meshes)}" if len(rows) > 1 else ""
            return [(word, f"{len(meshes)}{suffix} meshes") for word, meshes in rows][:1]
        return [(word, ", ".join(meshes)) for word, meshes in rows]

    def by_status(self) -> dict[str, list[str]]:
        """Return the meshes with refuted results, with unknown results, and the others."""
        return {
            kind: [mesh for mesh in self.meshes if self._status_on(mesh) == kind]
            for kind in (REFUTED, UNKNOWN, PROVED)
        }

    def _status_on(self, mesh: str) -> str:
        """Return the worst status of the results on one mesh."""
        kinds = {result.status for result in self.results if result.mesh == mesh} or {self.status}
        return next((kind for kind in (REFUTED, UNKNOWN) if kind in kinds), PROVED)

    def _head(self) -> str:
        parts = "; ".join(f"{status} on {meshes}" for status, meshes in self.head())
        name = self.name or "the program"
        counts = collections.Counter(result.status for result in self.results)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in COLORS if counts[kind])
        results = _plural(len({result.path for result in self.results}))
        if len(self.meshes) > 1:
            kinds = f"all {next(iter(counts))}" if len(counts) == 1 else kinds
            results += f" on {len(self.meshes)} meshes"
        results += f": {kinds}" if kinds else ""
        quiet = f" ({counted(self.silenced)})" if self.silenced else ""
        return f"{name}: {parts}, against {self.against} ({results}){quiet}"

    def _tail(self) -> list[str]:
        return [self.numbers] if self.numbers else []

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


def _row(one: Result) -> str:
    color = COLORS[one.status]
    cells = (one.path, one.mesh, one.status, one.reason)
    style = f' style="color:{color}"'
    return "<tr>" + "".join(f"<td{style}>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _plural(count: int) -> str:
    return f"{count} result{'s' * (count != 1)}"

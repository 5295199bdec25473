"""What a check found: data first; text for people and HTML for notebooks are made from it."""

from __future__ import annotations

import dataclasses
import html
import linecache
from typing import Any

from .._errors import ShardwiseError
from .._program import Where


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be."""

    code: str
    """Stable: `SW101` and so on; each has a page in the documentation."""
    message: str
    """What is wrong, as a sentence."""
    where: Where
    """The line of the user's program."""
    leaf: str = ""
    """Which result it is about, as a path: `['params']['kernel']`."""
    remedy: str = ""
    certain: bool = True
    """Whether it fails the verdict. What was read off the program and may be right does not."""
    mesh: str = ""
    """The mesh on which it shows."""

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {
            "code": self.code,
            "message": self.message,
            "certain": self.certain,
            "leaf": self.leaf,
            "mesh": self.mesh,
            "remedy": self.remedy,
            "where": {
                "file": self.where.file,
                "line": self.where.line,
                "column": self.where.column,
                "function": self.where.function,
                "text": self.where.text,
                "through": self.where.through,
            },
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a check. True where the program is right on every mesh tried."""

    findings: tuple[Finding, ...]
    meshes: tuple[str, ...]
    """The meshes that were tried, in words."""
    leaves: int
    """How many results were compared on each."""
    name: str = ""
    """The function that was checked."""

    @property
    def ok(self) -> bool:
        """Whether nothing certain was found."""
        return not any(finding.certain for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        tried = ", ".join(self.meshes)
        head = f"{self.name or 'the program'}: {'right' if self.ok else 'WRONG'} on {tried}"
        return "\n\n".join([head, *map(str, self.findings)])

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data."""
        return {
            "name": self.name,
            "ok": self.ok,
            "meshes": list(self.meshes),
            "leaves": self.leaves,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def raise_if_wrong(self) -> Verdict:
        """Raise `ShardwiseError` with the whole text if the program is wrong; else give itself."""
        if not self.ok:
            raise ShardwiseError(str(self))
        return self

    def _repr_html_(self) -> str:
        color = "#1a7f37" if self.ok else "#cf222e"
        items = "".join(f"<li><pre>{html.escape(str(f))}</pre></li>" for f in self.findings)
        title = html.escape(f"{self.name or 'the program'}: {'right' if self.ok else 'wrong'}")
        tried = html.escape(", ".join(self.meshes))
        return (
            f'<div><b style="color:{color}">{title}</b> on {tried}'
            f'<ul style="list-style:none;padding-left:0">{items}</ul></div>'
        )


def _lines(finding: Finding) -> list[str]:
    sure = "" if finding.certain else " (may be right)"
    lines = [f"{finding.code}{sure}: {finding.message}"]
    where = finding.where
    if where.file:
        lines.append(f"  --> {where.file}:{where.line} in {where.function}")
        if where.text:
            number = str(where.line)
            lines.append(f"  {number} | {where.text}")
            lines.append(f"  {' ' * len(number)} | {caret(where)}")
        if where.through:
            lines.append(f"  through {where.through}")
    if finding.remedy:
        lines.append("  Remedy: " + finding.remedy.replace("\n", "\n    "))
    return lines


def caret(where: Where) -> str:
    """A line of carets under the call."""
    raw = linecache.getline(where.file, where.line)
    indent = len(raw) - len(raw.lstrip())
    start = max(0, where.column - indent)
    length = max(1, where.end_column - where.column) if where.end_column > where.column else 0
    text = where.text
    if not length or start >= len(text):
        return "^" * max(1, len(text))
    return " " * start + "^" * min(length, len(text) - start)

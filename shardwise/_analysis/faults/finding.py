"""A finding: data first; the text for people is derived from it."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..._base.calls import public_methods

if TYPE_CHECKING:
    from ..._program import Where


MEANING, NUMBERS, OPERATIONS = "meaning", "numbers", "operations"
"""The kinds of evidence: symbolic values, the numbers of a run, the list of operations."""


def nowhere() -> Where:
    """Return the place of a finding that has no line."""
    from ..._program import Where  # imports JAX

    return Where("", 0, "")


@dataclasses.dataclass(frozen=True)
class Fix:
    """An edit of the user's source after which the program was verified to be right."""

    diff: str
    """The edit as a unified diff, which `patch -p0` applies."""
    description: str
    """What the edit does, in a sentence."""
    verified: str
    """`"proved"`: right for all inputs on every mesh; `"checked"`: run on these arguments."""
    file: str = dataclasses.field(default="", repr=False)
    before: str = dataclasses.field(default="", repr=False)
    """The text of the file that was edited."""
    after: str = dataclasses.field(default="", repr=False)

    def to_dict(self) -> dict[str, str]:
        """Return the fix as plain data."""
        return {"diff": self.diff, "description": self.description, "verified": self.verified}


@public_methods("finding")
@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be."""

    code: str
    """A stable code such as `SW401`; each has a section in the documentation."""
    message: str
    """What is wrong, as a sentence."""
    where: Where
    """The line of the user's program."""
    leaf: str = ""
    """The path of the result it is about: `['params']['kernel']`."""
    remedy: str = ""
    certain: bool = True
    """Whether it fails the verdict; a suspicion from reading the program does not."""
    mesh: str = ""
    """The mesh on which it shows."""
    same_problem: tuple[str, ...] = ()
    """The paths of other results that are wrong for the same reason."""
    fix: Fix | None = None
    """An edit that makes the program right, if one was found and verified."""
    evidence: str = dataclasses.field(default="", repr=False)
    """What it is derived from, if that matters: `MEANING`, `NUMBERS` or `OPERATIONS`."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """The paths of all results it is about."""
        return self.leaf, *self.same_problem

    @property
    def doubt(self) -> str:
        """The text after the code of a finding that is only a suspicion."""
        return "" if self.certain or self.of_the_check else " (may be right)"

    @property
    def is_cause(self) -> bool:
        """Whether it says why a result is wrong, not only how."""
        return self.evidence == MEANING and self.code != "SW409"

    @property
    def of_the_check(self) -> bool:
        """Whether it is about the limits of the check, not about the program."""
        return self.code.startswith("SW5")

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "code": self.code,
            "message": self.message,
            "certain": self.certain,
            "leaf": self.leaf,
            "same_problem": list(self.same_problem),
            "mesh": self.mesh,
            "remedy": self.remedy,
            "where": self.where.to_dict(),
            "fix": self.fix.to_dict() if self.fix else None,
        }

    def __str__(self) -> str:
        return "\n".join(text_lines(self))


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with repeated remedies replaced by "as above."."""
    remedies: set[str] = set()
    results = []
    for finding in findings:
        repeated = finding.remedy in remedies and finding.fix is None
        results.append(dataclasses.replace(finding, remedy=AGAIN[0]) if repeated else finding)
        remedies |= {finding.remedy} - {""}
    return results


def text_lines(finding: Finding) -> list[str]:
    """Return the text of a finding, line by line."""
    lines = [f"{finding.code}{finding.doubt}: {finding.message}"]
    where = finding.where
    if where.file:
        lines.append(f"  --> {where.file}:{where.line} in {where.function}")
        if where.text:
            number = str(where.line)
            lines.append(f"  {number} | {where.text}")
            lines.append(f"  {' ' * len(number)} | {caret(where)}")
        if where.through:
            lines.append(f"  through {where.through}")
    if labelled := advice(finding):
        label, text = labelled
        lines.append(f"  {label}: " + text.replace("\n", "\n    "))
    return lines


def advice(finding: Finding) -> tuple[str, str] | None:
    """Return a label and a text about what to do; None if there is nothing to say."""
    if finding.fix is not None:
        head = f"{finding.fix.description}\n{finding.fix.diff}"
        return f"Fix ({finding.fix.verified})", head.rstrip("\n")
    if not finding.remedy:
        return None
    tried = not finding.certain or finding.remedy in AGAIN
    return "Remedy" if tried else "Suggestion (not verified)", finding.remedy


AGAIN = ("as above.", "the fix above.")


def caret(where: Where) -> str:
    """Return carets under the call, to go below the source line without its indentation."""
    raw = linecache.getline(where.file, where.line)
    return underline(where)[len(raw) - len(raw.lstrip()) :]


def underline(where: Where) -> str:
    """Return carets under the call, to go below the source line with its indentation."""
    raw = linecache.getline(where.file, where.line).rstrip()
    # Python counts columns in bytes. A call over several lines is marked up to the line end.
    start, end = (len(raw.encode()[:column].decode(errors="ignore")) for column in _columns(where))
    indent = len(raw) - len(raw.lstrip())
    if not indent <= start < min(end, len(raw)):
        start, end = indent, len(raw)
    blank = "".join(char if char == "\t" else " " for char in raw[:start])
    return blank + "^" * max(1, min(end, len(raw)) - start)


def _columns(where: Where) -> tuple[int, int]:
    goes_on = 0 < where.end_column <= where.column
    return where.column, 1 << 30 if goes_on else where.end_column


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Return each cause once: its first result, and the number of other results."""
    by_cause: dict[Any, list[Finding]] = {}
    for finding in findings:
        key = finding.code, finding.where, finding.certain, finding.evidence
        by_cause.setdefault(key, []).append(finding)
    joined = []
    for group in by_cause.values():
        leaves = dict.fromkeys(finding.leaf for finding in group)
        others = tuple(leaf for leaf in leaves if leaf != group[0].leaf)
        count = len(others)
        more = f"; {count} more result{'s' * (count != 1)}" if others else ""
        joined.append(
            dataclasses.replace(group[0], message=group[0].message + more, same_problem=others)
        )
    return joined

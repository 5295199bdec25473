"""What a check found: data first; text for people and HTML for notebooks are made from it."""

from __future__ import annotations

import dataclasses
import html
import linecache
from collections.abc import Sequence
from typing import Any

from ..._base.calls import public_methods
from ..._base.errors import ShardwiseError
from ..._program import Where

NOWHERE = Where("", 0, "")


@dataclasses.dataclass(frozen=True)
class Fix:
    """An edit of the user's source that was tried: the edited program is right."""

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
    likewise: tuple[str, ...] = ()
    """The paths of further results that are wrong for the same reason."""
    fix: Fix | None = None
    """An edit that makes the program right, if one was found and verified."""

    @property
    def doubt(self) -> str:
        """What is said behind the code of something that was read off the program."""
        return "" if self.certain or self.of_the_check else " (may be right)"

    @property
    def of_the_check(self) -> bool:
        """Whether it is about what the check could see, and not about the program."""
        return self.code.startswith("SW5")

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {
            "code": self.code,
            "message": self.message,
            "certain": self.certain,
            "leaf": self.leaf,
            "likewise": list(self.likewise),
            "mesh": self.mesh,
            "remedy": self.remedy,
            "where": self.where.to_dict(),
            "fix": self.fix.to_dict() if self.fix else None,
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


@public_methods("verdict")
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
    wrong_on: tuple[str, ...] = ()
    """Those of the meshes on which it is wrong."""
    drawn: bool = False
    """Whether values were drawn, because only shapes were given."""
    proved_on: tuple[str, ...] = ()
    """Those of the meshes on which every result is proved right for all inputs. Of these only the
    largest was also run, as a cross-check, unless numbers are near the end of their dtype."""
    not_run: tuple[str, ...] = ()
    """Those of the meshes of which nothing is known: a larger one is wrong already. With
    `all_meshes` there are none."""
    silenced: tuple[Finding, ...] = ()
    """What the source silences with a comment, `# shardwise: ignore[SW203]`. It fails nothing."""

    def __post_init__(self) -> None:
        if not self.wrong_on and not self.ok:
            known = tuple(mesh for mesh in self.meshes if mesh not in self.not_run)
            object.__setattr__(self, "wrong_on", known)

    @property
    def ok(self) -> bool:
        """Whether nothing certain was found."""
        return not any(finding.certain for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def right_on(self) -> tuple[str, ...]:
        """Those of the meshes on which nothing wrong was seen."""
        known = {*self.wrong_on, *self.not_run}
        return tuple(mesh for mesh in self.meshes if mesh not in known)

    @property
    def limited(self) -> bool:
        """Whether the data, or the meshes, could not have shown much, or hide a known cause."""
        return any(
            finding.of_the_check or (finding.code.startswith("SW40") and not finding.certain)
            for finding in self.findings
        )

    def head(self, brief: bool = False) -> list[tuple[str, str]]:
        """Which meshes it is wrong and right on: pairs of a word and the meshes."""
        said = "right as far as this could show" if self.limited else "right"
        said = NOTHING if is_not_sharded(self.findings) else said
        if any(finding.certain for finding in self.silenced):
            said = "right but for what is silenced"
        rows = [("WRONG", self.wrong_on), (said, self.right_on), ("not run", self.not_run)]
        if brief and len(self.meshes) > 1:
            of = f" of {len(self.meshes)}" if self.wrong_on != self.meshes and self.wrong_on else ""
            return [(word, f"{len(on)}{of} meshes") for word, on in rows if on][:1]
        return [(word, ", ".join(on)) for word, on in rows if on]

    def __str__(self) -> str:
        parts = "; ".join(f"{word} on {meshes}" for word, meshes in self.head())
        head = f"{self.name or 'the program'}: {parts}{DRAWN if self.drawn else ''}"
        head += f" ({counted(self.silenced)})" if self.silenced else ""
        return "\n\n".join([head, *map(str, told_once(self.findings))])

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain data."""
        return {
            "name": self.name,
            "ok": self.ok,
            "meshes": list(self.meshes),
            "wrong_on": list(self.wrong_on),
            "drawn": self.drawn,
            "proved_on": list(self.proved_on),
            "not_run": list(self.not_run),
            "leaves": self.leaves,
            "findings": [finding.to_dict() for finding in self.findings],
            "silenced": [finding.to_dict() for finding in self.silenced],
        }

    def raise_if_wrong(self) -> Verdict:
        """Raise `ShardwiseError` with the whole text if the program is wrong; else give itself."""
        __tracebackhide__ = True  # pytest shows the caller's line
        if not self.ok:
            raise ShardwiseError(str(self))
        return self

    def _repr_html_(self) -> str:
        name = html.escape(self.name or "the program")
        parts = "; ".join(
            f'<b style="color:{COLORS.get(word, GREEN)}">{word.lower()}</b> on '
            f"{html.escape(meshes)}"
            for word, meshes in self.head()
        )
        items = "".join(map(_html, told_once(self.findings)))
        quiet = f" ({counted(self.silenced)})" if self.silenced else ""
        return f"<div>{name}: {parts}{DRAWN if self.drawn else ''}{quiet}{items}</div>"


NOT_SHARDED = (
    "there is no shard_map in the program: the compiler partitions it, and what it computes is the "
    "same on any mesh"
)

NOTHING = "nothing to check: no shard_map, the compiler partitions the program; tried"
"""The headline of such a program, in place of a word about meshes."""


def is_not_sharded(findings: Sequence[Finding]) -> bool:
    """Whether a program was found to have no `shard_map`."""
    return any(one.message == NOT_SHARDED for one in findings)


DRAWN = " (values drawn)"

GREEN, RED, AMBER = "#1a7f37", "#cf222e", "#9a6700"
COLORS = {"WRONG": RED, "not run": AMBER}


def _html(finding: Finding) -> str:
    """A finding for notebooks: the head in colour, the line of source and the remedy below."""
    head, *rest = (html.escape(line) for line in _lines(finding))
    color = RED if finding.certain else AMBER
    text = "\n".join(rest)
    return (
        f'<div style="border-left:3px solid {color};padding-left:.8em;margin:.8em 0">'
        f'<span style="color:{color};white-space:pre-wrap">{head}</span>'
        f'<pre style="margin:.3em 0 0">{text}</pre></div>'
    )


def counted(silenced: Sequence[Finding]) -> str:
    """How many findings are silenced, in words: `2 silenced: SW203, SW204`."""
    codes = ", ".join(sorted({finding.code for finding in silenced}))
    return f"{len(silenced)} silenced: {codes}"


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with each remedy only the first time, for people who read from the top."""
    seen: set[str] = set()
    told = []
    for finding in findings:
        again = finding.remedy in seen and finding.fix is None
        told.append(dataclasses.replace(finding, remedy=AGAIN[0]) if again else finding)
        seen |= {finding.remedy} - {""}
    return told


def _lines(finding: Finding) -> list[str]:
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
    if said := advice(finding):
        label, text = said
        lines.append(f"  {label}: " + text.replace("\n", "\n    "))
    return lines


def advice(finding: Finding) -> tuple[str, str] | None:
    """Return what to do about a finding: a label and a text; None where there is nothing to say."""
    if finding.fix is not None:
        head = f"{finding.fix.description}\n{finding.fix.diff}"
        return f"Fix ({finding.fix.verified})", head.rstrip("\n")
    if not finding.remedy:
        return None
    tried = not finding.certain or finding.remedy in AGAIN
    return "Remedy" if tried else "Suggestion (not verified)", finding.remedy


AGAIN = ("as above.", "the fix above.")


def caret(where: Where) -> str:
    """A line of carets under the call, to go below the line without its indentation."""
    raw = linecache.getline(where.file, where.line)
    return underline(where)[len(raw) - len(raw.lstrip()) :]


def underline(where: Where) -> str:
    """The same, to go below the line as it stands in the file."""
    raw = linecache.getline(where.file, where.line).rstrip()
    # Python counts columns in bytes. A call that goes on below is marked up to the end of the line.
    start, end = (len(raw.encode()[:at].decode(errors="ignore")) for at in _columns(where))
    indent = len(raw) - len(raw.lstrip())
    if not indent <= start < min(end, len(raw)):
        start, end = indent, len(raw)
    blank = "".join(char if char == "\t" else " " for char in raw[:start])
    return blank + "^" * max(1, min(end, len(raw)) - start)


def _columns(where: Where) -> tuple[int, int]:
    goes_on = 0 < where.end_column <= where.column
    return where.column, 1 << 30 if goes_on else where.end_column

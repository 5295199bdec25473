"""The result of a check: data first, from which text and notebook HTML are derived."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

from ..._base.calls import public_methods
from ..._base.errors import ShardwiseError
from ..faults import MEANING, NOT_SHARDED, Finding, text_lines, told_once


@public_methods("verdict")
@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a check. True if the program is right on every mesh tried."""

    findings: tuple[Finding, ...]
    meshes: tuple[str, ...]
    """The meshes that were tried, as text."""
    leaves: int
    """How many results were compared on each mesh."""
    name: str = ""
    """The name of the function that was checked."""
    wrong_on: tuple[str, ...] = ()
    """The meshes on which it is wrong."""
    drawn: bool = False
    """Whether values were drawn, because only shapes were given."""
    proved_on: tuple[str, ...] = ()
    """The meshes on which every result is proved right for all inputs. Only the largest of these
    was also run, as a cross-check, unless numbers may overflow."""
    not_run: tuple[str, ...] = ()
    """The meshes that were not decided, because a larger one is already wrong. Empty with
    `all_meshes`."""
    silenced: tuple[Finding, ...] = ()
    """Findings silenced by a comment, `# shardwise: ignore[SW203]`. They do not fail the check."""
    checked: str = ""
    """A line for each thing that was left out: sizes that the program does not accept, the part
    that the compiler partitions."""

    def __post_init__(self) -> None:
        if not self.wrong_on and not self.ok:
            run_on = tuple(mesh for mesh in self.meshes if mesh not in self.not_run)
            object.__setattr__(self, "wrong_on", run_on)

    @property
    def ok(self) -> bool:
        """Whether there is no certain finding."""
        return not any(finding.certain for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def right_on(self) -> tuple[str, ...]:
        """The meshes on which nothing wrong was found."""
        excluded = {*self.wrong_on, *self.not_run}
        return tuple(mesh for mesh in self.meshes if mesh not in excluded)

    @property
    def limited(self) -> bool:
        """Whether the data or the meshes make this a weak test, or hide a known cause."""
        return any(
            finding.of_the_check or (finding.evidence == MEANING and not finding.certain)
            for finding in self.findings
        )

    def head(self, brief: bool = False) -> list[tuple[str, str]]:
        """Return the headline: pairs of a word ("right", "WRONG") and where it applies."""
        label = "passed a weak test" if self.limited else "right"
        label = NOTHING if is_not_sharded(self.findings) else label
        if any(finding.certain for finding in self.silenced):
            label = "right but for what is silenced"
        rows = [("WRONG", self.wrong_on), (label, self.right_on), ("not run", self.not_run)]
        if brief and len(self.meshes) > 1:
            total = (
                f" of {len(self.meshes)}" if self.wrong_on != self.meshes and self.wrong_on else ""
            )
            return [(word, f"on {len(meshes)}{total} meshes") for word, meshes in rows if meshes][
                :1
            ]
        return [(word, f"on {', '.join(meshes)}") for word, meshes in rows if meshes]

    def _headline(self, name: str, parts: Sequence[str]) -> str:
        silenced = f" ({counted(self.silenced)})" if self.silenced else ""
        return f"{name}: {'; '.join(parts)}{' (values drawn)' if self.drawn else ''}{silenced}"

    def __str__(self) -> str:
        parts = [f"{word} {place}" for word, place in self.head()]
        head = self._headline(self.name or "the program", parts)
        head += f"\n{self.checked}" if self.checked else ""
        return "\n\n".join([head, *map(str, told_once(self.findings))])

    def __repr__(self) -> str:
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "name": self.name,
            "ok": self.ok,
            "meshes": list(self.meshes),
            "wrong_on": list(self.wrong_on),
            "drawn": self.drawn,
            "proved_on": list(self.proved_on),
            "not_run": list(self.not_run),
            "leaves": self.leaves,
            "checked": self.checked,
            "findings": [finding.to_dict() for finding in self.findings],
            "silenced": [finding.to_dict() for finding in self.silenced],
        }

    def raise_if_wrong(self) -> Verdict:
        """Raise `ShardwiseError` with the whole text if the program is wrong; return `self`."""
        __tracebackhide__ = True  # pytest shows the caller's line
        if not self.ok:
            raise ShardwiseError(str(self))
        return self

    def _repr_html_(self) -> str:
        parts = [
            f'<b style="color:{COLORS.get(word, GREEN)}">{word.lower()}</b> {html.escape(place)}'
            for word, place in self.head()
        ]
        head = self._headline(html.escape(self.name or "the program"), parts)
        head += f"<div>{html.escape(self.checked)}</div>" if self.checked else ""
        return f"<div>{head}{''.join(map(_html, told_once(self.findings)))}</div>"


NOTHING = "nothing to check: no shard_map, the compiler partitions the program; tried"
"""The headline for such a program, instead of a word about meshes."""


def is_not_sharded(findings: Sequence[Finding]) -> bool:
    """Return whether the findings say that a program has no `shard_map`."""
    return any(finding.message == NOT_SHARDED for finding in findings)


GREEN, RED, AMBER = "#1a873a", "#e0313d", "#a06b00"
"""Readable on white and on black: a notebook does not say which it is."""
COLORS = {"WRONG": RED, "not run": AMBER}


def _html(finding: Finding) -> str:
    """Render a finding for notebooks: a coloured head, the source line and the remedy."""
    head, *lines = (html.escape(line) for line in text_lines(finding))
    color = RED if finding.certain else AMBER
    text = "\n".join(lines)
    return (
        f'<div style="border-left:3px solid {color};padding-left:.8em;margin:.8em 0">'
        f'<span style="color:{color};white-space:pre-wrap">{head}</span>'
        f'<pre style="margin:.3em 0 0">{text}</pre></div>'
    )


def counted(silenced: Sequence[Finding]) -> str:
    """Return how many findings are silenced, as text: `2 silenced: SW203, SW204`."""
    codes = ", ".join(sorted({finding.code for finding in silenced}))
    return f"{len(silenced)} silenced: {codes}"

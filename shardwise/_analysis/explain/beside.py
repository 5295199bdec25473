"""Findings of `check` and `prove` beside the traffic they are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from .facts import Facts, Remark

NOT_FOLLOWED = "SW409"
"""Found where a program could not be followed: that says nothing of its traffic."""

Kind = TypeVar("Kind", bound=Facts)


class Judged(Protocol):
    """A verdict or a proof: something with findings."""

    @property
    def findings(self) -> Sequence[Any]:
        """The findings: code, message, line and remedy."""
        ...


def with_findings(report: Kind, judged: Judged) -> Kind:
    """The report with each finding, and the collectives that stand in its line."""
    found = tuple(
        Remark(
            finding.code,
            finding.message,
            _advice(finding),
            finding.where,
            finding.certain,
            tuple(
                place
                for place, use in enumerate(report.collectives)
                if finding.where.file
                and (use.where.file, use.where.line) == (finding.where.file, finding.where.line)
            ),
        )
        for finding in judged.findings
        if finding.code != NOT_FOLLOWED
    )
    return dataclasses.replace(report, findings=found)


def _advice(finding: Any) -> str:
    """What to do about a finding: the fix that was verified, or what is only a suggestion."""
    fix = getattr(finding, "fix", None)
    if fix is not None:
        return f"Fix ({fix.verified}): {fix.description}\n{fix.diff}".rstrip("\n")
    unverified = finding.remedy and finding.certain and finding.remedy not in AGAIN
    return f"Suggestion (not verified): {finding.remedy}" if unverified else finding.remedy


AGAIN = ("as above.", "the fix above.")

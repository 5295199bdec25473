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
            finding.remedy,
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

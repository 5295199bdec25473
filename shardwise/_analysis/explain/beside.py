"""Attach findings of `check` and `prove` to the collectives that they are about."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from ..faults import NOT_SHARDED
from .facts import Remark, ReportData

NOT_FOLLOWED = "SW409"
"""Reported if a program could not be analysed, which says nothing about its traffic."""

Kind = TypeVar("Kind", bound=ReportData)


def with_findings(report: Kind, judged: Any) -> Kind:
    """Return the report with each finding and the indices of the collectives on its line."""
    remarks = tuple(
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
        if finding.code != NOT_FOLLOWED and finding.message != NOT_SHARDED
    )
    return dataclasses.replace(report, findings=remarks)


def _advice(finding: Any) -> str:
    """Return what to do about a finding: its verified fix, or the remedy as a suggestion."""
    fix = getattr(finding, "fix", None)
    if fix is not None:
        return f"Fix ({fix.verified}): {fix.description}\n{fix.diff}".rstrip("\n")
    unverified = finding.remedy and finding.certain and finding.remedy not in AGAIN
    return f"Suggestion (not verified): {finding.remedy}" if unverified else finding.remedy


AGAIN = ("as above.", "the fix above.")

"""Put a verified fix at the finding that it resolves, which comes first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..check import Finding, Fix
from ..faults import NUMBERS, OtherType, TooLarge, TooSmall
from .candidate import Candidate, import_edits
from .source import shown_path, unified_diff


def fix_of(candidate: Candidate, how: str, names: Any) -> Fix:
    """Return a verified candidate as the fix shown to the user."""
    source = candidate.source
    after = source.applied([*candidate.edits, *import_edits(candidate, names)])
    diff = unified_diff(shown_path(source.file), source.text, after)
    return Fix(diff, candidate.description, how, source.file, source.text, after)


def led(findings: Sequence[Finding], candidate: Candidate, fix: Fix) -> tuple[Finding, ...]:
    """Return the findings, the one resolved by the fix first; others refer to the fix.

    A finding that does not know the line of the mistake gets that of the fix.
    """
    lines = [candidate.source.line_of(edit.start) for edit in candidate.edits]

    def guessed(finding: Finding) -> bool:
        return not finding.where.file or (finding.evidence == NUMBERS and finding.code in GUESSED)

    def distance(finding: Finding) -> tuple[bool, float]:
        if finding.where.file == candidate.source.file:
            nearest = min(abs(finding.where.line - line) for line in lines)
        else:
            nearest = 1e9
        return not finding.certain, min(nearest, 0.5) if guessed(finding) else nearest

    first, *others = sorted(findings, key=distance)
    remaining = [
        dataclasses.replace(finding, remedy=AGAIN) if finding.certain else finding
        for finding in others
    ]
    if guessed(first) and first.where.line not in lines:
        first = dataclasses.replace(first, where=candidate.source.where(min(candidate.edits)))
    return (dataclasses.replace(first, fix=fix), *remaining)


AGAIN = "the fix above."

GUESSED = {OtherType.code, TooLarge.code, TooSmall.code}
"""The faults where numbers or shapes show which result is wrong, and the line is where it was last
computed or reduced."""

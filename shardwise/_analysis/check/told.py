"""Which findings are told: each once, and what follows from a cause with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .verdict import Finding
from .wrong import Wrong

NO_CAUSE = "SW109"
"""The code of what is seen to differ, and no more."""

SAID_BY = {
    "SW201": {"SW401"},
    "SW202": {"SW301"},
    "SW203": {"SW104", "SW105", "SW301", "SW403", "SW406"},
}
"""Suspicions that need no word of their own once running has shown the fact."""


def once(findings: Sequence[Finding], wrong: Sequence[Wrong]) -> tuple[Finding, ...]:
    """Each finding once; what reading suspected is certain where running shows it.

    Not where something else is known to make the result wrong: that says nothing of the suspicion.
    """
    caused = {
        path
        for finding in findings
        if finding.certain and finding.code.startswith("SW40")
        for path in (finding.leaf, *finding.likewise)
    }
    shown = {w.suspect for w in wrong if w.structure or w.path not in caused}
    told = {finding.code for finding in findings if finding.certain}
    kept: dict[Any, Finding] = {}
    for finding in findings:
        if told & SAID_BY.get(finding.code, set()):
            continue
        if (finding.code, finding.where) in shown:
            finding = dataclasses.replace(finding, certain=True)
        key = (finding.code, finding.where, finding.leaf)
        if key not in kept or (finding.certain and not kept[key].certain):
            kept[key] = finding
    return tuple(sorted(kept.values(), key=lambda finding: not finding.certain))


def led_by_a_cause(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """With a cause that is known, what is seen to differ is told as what may follow from it.

    Not with one that was silenced: it would be silenced too.
    """
    cause = next((one for one in findings if one.certain and one.code.startswith("SW40")), None)
    vague = [one for one in findings if one.code == NO_CAUSE]
    if cause is None or not vague:
        return tuple(findings)
    paths = tuple(path for one in vague for path in (one.leaf, *one.likewise))
    count = f"{len(paths)} more result{'s differ' if len(paths) > 1 else ' differs'} too"
    told = dataclasses.replace(
        cause,
        message=f"{cause.message}; {count}, perhaps because of it",
        likewise=(*cause.likewise, *paths),
    )
    return tuple(told if one is cause else one for one in findings if one not in vague)

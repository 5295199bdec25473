"""SARIF 2.1.0, which code scanning reads: GitHub, GitLab, Azure DevOps and editors."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .._analysis.faults import FAULTS, Fault
from .._base.version import __version__
from .report import CaseOutcome, advised, place

if TYPE_CHECKING:
    from .._analysis.check import Finding
    from .silencing import Unused

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(outcomes: Sequence[CaseOutcome], unused: Sequence[Unused]) -> str:
    """Return all findings as one run, in which silenced ones are marked as suppressed."""
    results = [
        _result(finding, outcome, silenced)
        for outcome in outcomes
        for silenced, findings in ((False, outcome.findings), (True, outcome.silenced))
        for finding in findings
    ]
    failed = [_failure(outcome) for outcome in outcomes if outcome.error is not None]
    notes = [_notification("note", entry.why, entry.file, entry.line) for entry in unused]
    driver = {
        "name": "shardwise",
        "semanticVersion": __version__,
        "rules": [_rule(entry) for entry in FAULTS.values()],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {"executionSuccessful": not failed, "toolExecutionNotifications": [*failed, *notes]}
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(fault: type[Fault]) -> dict[str, Any]:
    former = {"deprecatedIds": list(fault.old)} if fault.old else {}
    return {
        "id": fault.code,
        **former,
        "shortDescription": {"text": fault.title.replace("`", "")},
        "fullDescription": {"text": fault.summary()},
        "help": {"text": fault.summary(), "markdown": fault.markdown()},
    }


def _result(finding: Finding, outcome: CaseOutcome, silenced: bool) -> dict[str, Any]:
    file, line, column = place(finding, outcome.entry)
    return {
        "ruleId": finding.code,
        "ruleIndex": list(FAULTS).index(finding.code),
        "level": "error" if finding.certain else "warning",
        "message": {"text": f"{finding.message}{advised(finding)}\nCase: {outcome.entry.name}"},
        "locations": [_location(file, line, column)],
        "suppressions": [{"kind": _silencer(finding, outcome)}] if silenced else [],
        **_fixes(finding),
        "properties": {"case": outcome.entry.name, "leaf": finding.leaf, **_meshes(outcome)},
    }


def _fixes(finding: Finding) -> dict[str, Any]:
    """Return a verified fix as replacements of lines."""
    if finding.fix is None:
        return {}
    old = finding.fix.before.splitlines(keepends=True)
    new = finding.fix.after.splitlines(keepends=True)
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    replacements = [
        {
            "deletedRegion": {
                "startLine": a + 1,
                "startColumn": 1,
                "endLine": b + 1,
                "endColumn": 1,
            },
            "insertedContent": {"text": "".join(new[c:d])},
        }
        for tag, a, b, c, d in blocks
        if tag != "equal"
    ]
    from .cases import shown

    artifact = _location(shown(finding.fix.file), 1)["physicalLocation"]["artifactLocation"]
    changes = [{"artifactLocation": artifact, "replacements": replacements}]
    return {
        "fixes": [{"description": {"text": finding.fix.description}, "artifactChanges": changes}]
    }


def _meshes(outcome: CaseOutcome) -> dict[str, list[str]]:
    """Return the meshes on which the case is wrong and right; for a proof, by status."""
    from .._analysis.check import Verdict

    verdict = outcome.verdict
    if verdict is None:
        return {}
    if isinstance(verdict, Verdict):
        return {"wrong_on": list(verdict.wrong_on), "right_on": list(verdict.right_on)}
    return {f"{status}_on": meshes for status, meshes in verdict.by_status().items()}


def _silencer(finding: Finding, outcome: CaseOutcome) -> str:
    """Return the SARIF kind of a suppression: by a comment in the source, or by the settings."""
    by_comment = {code for _, _, code in outcome.silencers()}
    return "inSource" if finding.code in by_comment else "external"


def _location(file: str, line: int, column: int = 1) -> dict[str, Any]:
    """Return a location: a path below the working directory is relative, any other a URI."""
    path = Path(file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    region = {"startLine": line, "startColumn": max(1, column)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}


def _failure(outcome: CaseOutcome) -> dict[str, Any]:
    entry = outcome.entry
    text = f"{entry.name} could not be run: {outcome.reason}"
    return _notification("error", text, str(entry.file), entry.line)


def _notification(level: str, text: str, file: str, line: int) -> dict[str, Any]:
    from .cases import shown

    return {
        "level": level,
        "message": {"text": text},
        "locations": [_location(shown(file), line)],
    }

"""The verdict on each result: from its meaning, and from numbers if the program was run.

A result whose meaning equals the reference's is proved. Meaning alone refutes a result that is
another multiple of what it should be, or a share. All else is refuted only by numbers of the same
program on the same mesh; the cause is then the one that the meaning gives, or else the one that
`check` finds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..._base.errors import name_of
from ..._meaning import Gap
from ..._mesh import AbstractMesh, axes_of, words
from ..._program import collectives_in, is_sharded
from ..check import Every, cause, ratios
from ..compiler.outside import checked_part
from ..faults import (
    MEANING,
    Contradiction,
    Finding,
    MayDiverge,
    NotFollowed,
    NothingCompared,
    UnusedAxis,
    grouped,
    place_of,
    split_silenced,
)
from .numbers import LIMIT, Numbers
from .proof import PROVED, REFUTED, UNKNOWN, Proof, Result
from .reading import ReadProgram, Row


def decided(row: Row) -> bool:
    """Return whether the meaning alone proves or refutes a result."""
    return not row.waits and all(
        (gap.kind == "times" and gap.sure) or _lacks(gap, row.program) for gap in row.gaps
    )


def _lacks(gap: Gap, program: ReadProgram) -> bool:
    """Return whether a returned share cannot be the whole: no device received another's."""
    mistake = gap.mistake
    return mistake is not None and mistake.returned and not program.passed_on & {*mistake.axes}


def _used_as_whole(gap: Gap) -> bool:
    """Return whether a share of a value of the reference is used as if it were the whole."""
    return gap.mistake is not None and gap.mistake.sound


def status_of(row: Row, numbers: Numbers) -> str:
    """Return whether a result is proved, refuted or unknown."""
    mesh = words(row.mesh)
    if numbers.refutes(mesh, row.path):
        return REFUTED if row.gaps or mesh in numbers.stuck_on else UNKNOWN
    if not row.gaps:
        return UNKNOWN if row.waits else PROVED
    shown = numbers.shows(row.path) and all(map(_used_as_whole, row.gaps))
    return REFUTED if shown or (decided(row) and not numbers.agree_on(row.path)) else UNKNOWN


def judged(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    rows: Sequence[Row],
    plain: ReadProgram,
    programs: Sequence[ReadProgram],
    numbers: Numbers,
    reference: Any,
    every: Every | None = None,
    left_out: Sequence[AbstractMesh] = (),
) -> Proof:
    """Return the proof of a program from all its results; meshes `left_out` were not read."""
    results = []
    suspects: list[Finding] = []
    findings_: dict[Finding, None] = {}
    for row in rows:
        status, mesh = status_of(row, numbers), words(row.mesh)
        row_findings = [_cause(gap, row, rows) for gap in row.gaps]
        shown = numbers.cause_of(mesh, row.path) if numbers.refutes(mesh, row.path) else None
        lines = _is_cause(row_findings) and bool(row_findings[0].where.file)
        if shown is not None and not (lines and shown.evidence == MEANING):
            row_findings = [dataclasses.replace(shown, certain=status == REFUTED)]
            findings_ |= dict.fromkeys(row_findings)
        else:
            certain = status == REFUTED
            suspects += [
                dataclasses.replace(finding, certain=certain and _is_cause([finding]))
                for finding in row_findings
            ]
        results.append(Result(row.path, mesh, status, _reason(row, row_findings)))
        if not row.gaps and status == UNKNOWN and not row.waits:
            findings_[Contradiction.on(mesh)] = None
    causes = grouped(_without_suspicions(suspects, findings_))
    reported = {(finding.code, finding.where) for finding in causes if finding.certain}
    shown = [finding for finding in findings_ if (finding.code, finding.where) not in reported]
    findings = [*causes, *shown, *_waiting(programs, numbers)]
    left_out = every.not_reached if every else left_out
    not_reached = list(map(words, left_out))
    if not_reached:
        named = every.some(not_reached) if every else ", ".join(not_reached)
        several = dict(left_out[0].shape) if every or len(programs) + len(left_out) > 1 else None
        findings.append(NotFollowed.not_reached(named, several, LIMIT))
        results += [
            Result(path, mesh, UNKNOWN, f"not reached: {LIMIT}")
            for mesh in not_reached
            for path in plain.traced.result_paths
        ]
    largest = max([plain, *programs], key=lambda program: program.mesh.size)
    larger = [program for program in programs if program.mesh.size > 1]
    if not results:
        what = "the function returns no arrays: there is nothing to prove"
        findings.append(NothingCompared.so(what))
    elif larger and not any(is_sharded(program.body) for program in larger):
        findings.append(UnusedAxis.not_sharded())
    kept, silenced = split_silenced(
        sorted(findings, key=lambda finding: not finding.certain), place_of(f)
    )
    part = checked_part(largest.traced, args, largest.mesh)
    statuses = {result.status for result in results} or {UNKNOWN}
    return Proof(
        next((kind for kind in (REFUTED, UNKNOWN) if kind in statuses), PROVED),
        tuple(results),
        kept,
        (*(words(program.mesh) for program in programs), *not_reached),
        sum(program.operations for program in programs),
        numbers.words,
        "itself on one device"
        if reference is None
        else getattr(reference, "__name__", "reference"),
        name_of(f),
        silenced,
        "\n".join(filter(None, [every.sentence if every else "", part])),
        every,
    )


def _cause(gap: Gap, row: Row, rows: Sequence[Row]) -> Finding:
    """Return the finding for a gap, using the gaps of the same result on the other meshes."""
    observed = [(dict(peer.mesh.shape), peer.gaps) for peer in rows if peer.path == row.path]
    axes = tuple(axes_of(row.mesh).values())
    return cause(gap, row.path, axes, words(row.mesh), ratios(gap, observed))


def _is_cause(findings: Sequence[Finding]) -> bool:
    """Return whether the meaning gives a cause, and not only that it could not be followed."""
    return bool(findings) and findings[0].code != NotFollowed.code


def _without_suspicions(
    suspects: Sequence[Finding], reported: dict[Finding, None]
) -> list[Finding]:
    """Drop findings that are not certain for results that are refuted by another finding."""
    leaves = {leaf for finding in reported for leaf in finding.leaves}
    leaves |= {finding.leaf for finding in suspects if finding.certain}
    return [finding for finding in suspects if finding.certain or finding.leaf not in leaves]


def _reason(row: Row, causes: Sequence[Finding]) -> str:
    if causes:
        return causes[0].message.removeprefix(f"{causes[0].leaf} ")
    return "it may wait forever" if row.waits else ""


def _waiting(programs: Sequence[ReadProgram], numbers: Numbers) -> list[Finding]:
    """Return findings for possible deadlocks, unless one was observed in a run."""
    if numbers.stuck_on:
        return []
    rows = [(program.mesh, site) for program in programs for site in program.sites]
    collectives = (next(c for b in site.bodies for c in collectives_in(b.ops)) for _, site in rows)
    pairs = zip(rows, collectives, strict=True)
    return grouped(
        [MayDiverge.from_operations(site, op, words(mesh)) for (mesh, site), op in pairs]
    )

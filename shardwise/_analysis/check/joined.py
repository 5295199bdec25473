"""Combine the evidence of analysis, numbers and operations into findings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._meaning import Gap, Mistake, vanishing
from ..._mesh import AbstractMesh, abstract, axes_of, words
from ..._program import Join, Where
from ..draw import is_zero
from ..faults import (
    FAULTS,
    Contradiction,
    DependsOnDevices,
    Differs,
    Finding,
    MayDiffer,
    NotFollowed,
    ShareUsed,
    grouped,
)
from ..faults.powers import Sizes
from ..lift import Run, wide
from .alone import alone
from .cause import cause, ratios
from .compare import Tolerance, agree
from .lint import lint, parted, place_of_values
from .meant import Meant
from .numbers import beyond_reference, by_numbers
from .wrong import Wrong


@dataclasses.dataclass(eq=False)
class Outcome:
    """What running and analysing a program on several meshes showed."""

    base: Run
    runs: Sequence[Run]
    meshes: Sequence[AbstractMesh]
    limits: Sequence[Tolerance]
    meant: Meant | None

    def __post_init__(self) -> None:
        self.wrong: list[Wrong] = []
        self.tied: list[Wrong] = []
        self.wrong_on: list[str] = []
        self.proved_on: list[str] = []
        self.failed: dict[str, Finding] = {}
        """Why results could not be compared, by mesh: a deadlock, or another structure."""
        self.tried: list[Sizes] = []
        """The meshes on which numbers were compared or proved right."""

    @property
    def largest(self) -> Run:
        """The program on the largest mesh."""
        return self.runs[-1]

    def findings(self) -> list[Finding]:
        """Return causes first, then faults without a known cause, then suspicions."""
        differ, wrong = beyond_reference(self.wrong)
        causes_found, rest = causes(self.meant, wrong)
        silent = grouped(hidden(self.meant, self.largest, self.wrong)) if self.meant else []
        pairs = zip(self.runs, self.meshes, strict=True) if self.base.paths else ()
        read = [
            finding
            for run, mesh in pairs
            for finding in lint(run.body, list(axes_of(mesh).values()), not self.wrong_on)
        ]
        if any(finding.code == MayDiffer.code for finding in read):
            read = self._after_run(read, known=bool(causes_found))
        odd = [Contradiction.on(mesh) for mesh in sorted({*self.wrong_on} & {*self.proved_on})]
        unexplained = by_numbers(rest, self.tried)
        return _once(
            [*differ, *causes_found, *silent, *unexplained, *self.failed.values(), *read, *odd]
        )

    def blamed(self, kept: Sequence[Finding]) -> tuple[str, ...]:
        """Return the meshes on which something is wrong that is not silenced."""
        certain = [finding for finding in kept if finding.certain]
        paths = {path for finding in certain for path in finding.leaves}
        codes = {finding.code for finding in certain}
        meshes = {row.mesh for row in self.wrong if row.path in paths}
        meshes |= {finding.mesh for finding in certain}
        meshes |= {mesh for mesh, finding in self.failed.items() if finding.code in codes}
        # Meshes that were not compared have the same problem as the largest wrong one.
        compared = {row.mesh for row in self.wrong} | self.failed.keys()
        largest = bool(self.wrong) and self.wrong[-1].mesh in meshes
        return tuple(
            mesh for mesh in self.wrong_on if mesh in meshes or (largest and mesh not in compared)
        )

    def _after_run(self, read: Sequence[Finding], known: bool) -> list[Finding]:
        """Add to each `MayDiffer` what the largest mesh shows: whether the devices do differ.

        Where a cause is `known`, the difference follows from it and is not reported.
        """
        run, body = self.largest, self.largest.body
        if words(self.meshes[-1]) in self.failed:
            return list(read)
        values = dict(zip(map(id, body.outs), run.values, strict=True))
        joins = [join for join, _ in parted(body)]
        # Values used on the way to a result are observed here, except those inside a loop.
        inner = [join for join in joins if id(join.outs[0]) not in values and join in body.ops]
        observed = run.observe([join.ins[0] for join in inner])
        values |= zip((id(join.outs[0]) for join in inner), observed, strict=True)
        rough = max(self.limits, key=lambda limit: limit.norm)
        differ: dict[Where, bool] = {}
        for join in joins:
            if (value := values.get(id(join.outs[0]))) is not None:
                place = place_of_values(body, join)
                varies = not all(agree(row, value.first, rough) for row in value.rows)
                differ[place] = varies or differ.get(place, False)
        findings = []
        for finding in read:
            if finding.code != MayDiffer.code or finding.where not in differ:
                findings.append(finding)
            elif not (known and differ[finding.where]):
                findings.append(
                    MayDiffer.after_run(finding, differ[finding.where], bool(self.wrong_on))
                )
        return findings


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Return each finding once, the certain ones first; leave out suspicions that they confirm."""
    ordered = sorted(findings, key=lambda finding: not finding.certain)
    certain = {finding.code for finding in findings if finding.certain}
    unique: dict[Any, Finding] = {}
    for finding in ordered:
        if certain.isdisjoint(FAULTS[finding.code].shown_by):
            unique.setdefault((finding.code, finding.where, finding.leaf), finding)
    return [*unique.values()]


def led_by_a_cause(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """If a cause is known, report vague differences as possible consequences of it.

    But not of a silenced cause: they would be silenced too.
    """
    first = next((finding for finding in findings if finding.certain and finding.is_cause), None)
    vague = [finding for finding in findings if finding.code == DependsOnDevices.code]
    if first is None or not vague:
        return tuple(findings)
    paths = tuple(path for finding in vague for path in finding.leaves)
    count = f"{len(paths)} more result{'s differ' if len(paths) > 1 else ' differs'} too"
    message = f"{first.message}; {count}, perhaps because of it"
    led = dataclasses.replace(first, message=message, same_problem=(*first.same_problem, *paths))
    return tuple(
        led if finding is first else finding for finding in findings if finding not in vague
    )


def causes(meant: Meant | None, wrong: Sequence[Wrong]) -> tuple[list[Finding], list[Wrong]]:
    """Return the causes of wrong results that the analysis knows, and the results without one."""
    by_index: dict[int, Finding] = {}
    if meant is None:
        return [], [*wrong]
    settled: set[int] = set()
    for item in reversed(wrong):
        # Meshes come in order of size, and the largest tells most. But with one element per device
        # nothing is added up, and then only a smaller mesh shows a share.
        if item.index not in settled and (finding := _cause(meant, item)) is not None:
            by_index[item.index] = finding
            settled |= {item.index} if finding.code != Differs.code else set()
    found = [by_index[index] for index in sorted(by_index)]
    return grouped(found), [row for row in wrong if row.index not in by_index]


def _cause(meant: Meant, one: Wrong) -> Finding | None:
    """Return the cause of one wrong result, if the analysis and the numbers agree."""
    gaps = meant.gaps(one.run) if one.same_type else None
    if not gaps or not gaps[one.index]:
        return None
    gap = _confirmed(gaps[one.index][0], one)
    if gap is None:
        return None
    first = _at(meant, one.run, one.index, gap)
    if first.code == NotFollowed.code:
        return alone(gap.stray, one)
    if not first.where.file:
        return None
    symptom = f"{one.much}, " if first.code == ShareUsed.code else ""
    symptom = "NaN or infinite " if one.not_finite else symptom
    return dataclasses.replace(first, message=f"{first.message} ({symptom}on {first.mesh})")


def _at(meant: Meant, run: Run, index: int, gap: Gap) -> Finding:
    """Return the finding for the place where a result starts to differ from one device."""
    assert run.mesh is not None
    gaps_by_mesh = meant.known_of(index)
    axes = tuple(axes_of(run.mesh).values())
    gap = _along_alone(gap, gaps_by_mesh)
    return cause(gap, run.paths[index], axes, words(abstract(run.mesh)), ratios(gap, gaps_by_mesh))


def _confirmed(gap: Gap, one: Wrong) -> Gap | None:
    """Return the place where a result starts to differ, if the numbers are wrong because of it.

    Using a share before it is summed may be right, and the error may come from elsewhere.
    """
    if gap.kind == "first" and not one.apart:
        return None  # values that the analysis treats as per-device may be equal
    if not gap.mistakes:
        return gap
    mistake = next((candidate for candidate in gap.mistakes if _shows(candidate, one)), None)
    return mistake and dataclasses.replace(gap, mistake=mistake)


def _shows(mistake: Mistake, one: Wrong) -> bool:
    if not mistake.returned:
        return one.comes_from(mistake.op)
    assert isinstance(mistake.op, Join)
    # A value that all devices share is not a share of a sum.
    return one.apart or not set(mistake.axes) <= set(mistake.op.replicated)


def _along_alone(gap: Gap, known: list[tuple[Sizes, list[Gap]]]) -> Gap:
    """Return the gap of returned shares with the multiple from a mesh with only their axes, if any.

    An extra sum along another axis of the same size makes shares look like means.
    """
    mistake = gap.mistake
    if mistake is None or not mistake.returned:
        return gap
    axes = {axis.name for axis in mistake.axes}
    for sizes, gaps in known:
        if {name for name, size in sizes.items() if size > 1} == axes:
            multiples = [place.ratio for place in gaps if place.mistake and place.mistake.returned]
            if multiples == [1]:
                return dataclasses.replace(gap, ratio=1)
    return gap


def hidden(meant: Meant, run: Run, wrong: list[Wrong]) -> list[Finding]:
    """Return the causes that the analysis finds but that the numbers do not show.

    For example, a bias counted once per device, at the start of training when it is zero.
    """
    if run.program.watch.sites:
        return []
    wrong_at = {result.index for result in wrong if result.run is run}
    values = run.traced.argument_values
    zero = functools.cache(lambda number: is_zero(values[number]))
    cache: dict[Any, Any] = {}
    findings = []
    for index, gaps in enumerate(meant.gaps(run) or ()):
        rows = [(gap, vanishing(gap.term, zero, cache)) for gap in gaps if gap.kind == "times"]
        quiet = [(gap, args) for gap, args in rows if index not in wrong_at and (args or gap.sure)]
        for gap, args in quiet[:1]:
            cause = _at(meant, run, index, gap)
            names = " and ".join(run.traced.argument_paths[number] for number in args)
            data = f", in which {names} {'are' if len(args) > 1 else 'is'} zero" if args else ""
            effect = "It is right with this data"
            if not np.isfinite(wide(run.values[index].first)).all():
                effect = "With this data it is NaN or infinite, and nothing is seen of it"
            message = f"{cause.message} (on {cause.mesh}). {effect}{data}"
            findings.append(dataclasses.replace(cause, message=message, certain=False))
    return findings

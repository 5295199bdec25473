"""Turn measured wrong results into findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..faults import (
    NUMBERS,
    DependsOnDevices,
    Differs,
    Finding,
    FollowsSharding,
    NotFinite,
    NotReference,
    OtherType,
    TooLarge,
    TooSmall,
    grouped,
)
from ..faults.powers import Seen, Sizes
from .compare import Wanted
from .wrong import Wrong

IN_ORDER = (OtherType, NotFinite, TooLarge, TooSmall, FollowsSharding, Differs, DependsOnDevices)
"""The faults that numbers can show; the first that fits a result is reported."""


def by_numbers(wrong: Sequence[Wrong], tried: Sequence[Sizes] = ()) -> list[Finding]:
    """Return one finding for each fault that wrong results show.

    `tried` are the meshes on which numbers were compared or proved right.
    """
    worst = {result.index: result for result in wrong}  # meshes come in order of size
    for result in worst.values():
        result.seen = _factors_of(result, wrong, tried)
    return grouped(list(map(_finding, worst.values())))


def _factors_of(result: Wrong, wrong: Sequence[Wrong], tried: Sequence[Sizes]) -> Seen:
    """Return the factor by which a result is too large on each mesh, where it is one number."""
    rows = [row for row in wrong if row.index == result.index]
    right = [sizes for sizes in tried if all(sizes != row.run.sizes for row in rows)]
    factors = [(row.run.sizes, row.times) for row in rows if row.times is not None]
    return [*((sizes, 1.0) for sizes in right), *factors]


def beyond_reference(wrong: Sequence[Wrong]) -> tuple[list[Finding], list[Wrong]]:
    """Return the findings about results that differ from a reference on one device already.

    Return with them the wrong results, those compared with one device instead.
    """
    findings, rest = {}, []
    for row in wrong:
        if (on_one := row.on_one_device) is not None:
            findings[row.index] = about(NotReference.from_numbers(on_one), on_one)
            expected = Wanted(on_one.got, on_one.run.dtypes[on_one.index])
            row = dataclasses.replace(row, want=expected)
        if on_one is None or not row.right:
            rest.append(row)
    return grouped([*findings.values()]), rest


def _finding(result: Wrong) -> Finding:
    """Return the first fault that the numbers show."""
    shown = ((fault, fault.from_numbers(result)) for fault in IN_ORDER)
    fault, finding = next((fault, finding) for fault, finding in shown if finding is not None)
    note = fault.note(result) if fault is FollowsSharding else ""
    return about(finding, result, f" on {result.mesh}{note}")


def about(finding: Finding, result: Wrong, tail: str = "") -> Finding:
    """Return a finding with the result and the mesh that it is about."""
    message = f"{result.path} {finding.message}{tail}"
    return dataclasses.replace(
        finding, message=message, leaf=result.path, mesh=result.mesh, evidence=NUMBERS
    )


def paths_apart(here: Sequence[str], there: Sequence[str]) -> str:
    """Describe the results in which two trees differ."""
    parts = []
    for word, paths, others in (("has", here, there), ("lacks", there, here)):
        extra = [path for path in paths if path not in {*others}]
        parts += [f"it {word} {few(extra)}"] if extra else []
    return ", and ".join(parts) or "the same results in other containers"


def few(paths: Sequence[str]) -> str:
    """List paths as text; of many, the first three."""
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more

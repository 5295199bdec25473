"""`shardwise inspect`: show every value of the cases of a file, on each device."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._base.errors import ShardwiseError
from . import files, options
from .cases import program_of
from .report import CaseOutcome, full_text
from .running import attempt, console, import_cases, one_case_for_files, path_as_it_was
from .status import ExitCode

if TYPE_CHECKING:
    from .._analysis.check import Case
    from .._analysis.inspect import Inspection
    from .._mesh import AbstractMesh

    Inspected = tuple[CaseOutcome, Inspection | None]

MOST = 64
"""The maximum number of devices of the default mesh, if the case has a mesh that small."""


def inspect(
    targets: options.Targets = None,
    mesh: Annotated[
        str | None,
        options.mesh_option(
            "The mesh: data=4,model=2. By default the largest of the case with up to "
            f"{MOST} devices."
        ),
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(metavar="[FILE:]LINE", help="Only the values made on this line."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Only values with this name, operation or function, or this text on their line.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Show values in the middle of a line too.")
    ] = False,
    output: options.ReportFormat = options.Printed.TEXT,
    page: Annotated[Path | None, options.page("Write a page to step through.")] = None,
    devices: options.Devices = None,
) -> None:
    """Show every value of a program, line by line, as each device holds it.

    Runs the cases: functions decorated with @sw.case(mesh=...) that return (f, args).
    """
    sizes = None if mesh is None else options.one_mesh(mesh)
    files.refuse_unwritable(page, "--html")
    named, _ = options.prepare(targets, devices)
    with path_as_it_was():
        cases = import_cases(named)
        one_case_for_files("inspect", cases, page)
        inspected = [
            attempt(entry, f"inspecting {entry.name}", lambda case: _inspect(case, sizes))
            for entry in cases
        ]
    inspected = _at(inspected, line, where)
    if output is options.Printed.JSON:
        typer.echo(json.dumps({"cases": [_data(*entry) for entry in inspected]}, indent=2))
    for outcome, inspection in inspected:
        if inspection is None:
            console().print(full_text(outcome, verbose=False))
        elif output is options.Printed.TEXT and page is None:
            typer.echo(inspection.text(every))
        if inspection is not None and page is not None:
            files.say_written(inspection.save(page))
    raise typer.Exit(
        ExitCode.NOT_RUN if any(outcome.error for outcome, _ in inspected) else ExitCode.OK
    )


def _inspect(case: Case, mesh: dict[str, int] | None) -> Inspection:
    from .._analysis.inspect import inspect as run
    from .._mesh import mesh as make_mesh

    f, args = program_of(case)
    chosen, note = (mesh, "") if mesh else _chosen(case.meshes(f, args))
    inspection = run(f, *args, mesh=make_mesh(chosen))
    notes = (*inspection.notes, note) if note else inspection.notes
    return dataclasses.replace(inspection, notes=notes)


def _at(inspected: list[Inspected], line: str | None, where: str | None) -> list[Inspected]:
    """Return the values selected in each case, without cases that have none if another has."""
    if line is None and where is None:
        return inspected
    matching: list[Inspected] = []
    without: list[Inspected] = []
    for outcome, inspection in inspected:
        try:
            matching.append((outcome, None if inspection is None else inspection.at(line, where)))
        except ShardwiseError as error:
            without.append((CaseOutcome(outcome.entry, error=error), None))
    if all(inspection is None for _, inspection in matching):
        return [*matching, *without]
    for outcome, _ in without:
        typer.echo(f"{outcome.entry.name}: no value is computed there", err=True)
    return matching


def _chosen(meshes: list[AbstractMesh]) -> tuple[dict[str, int], str]:
    """Return the largest mesh of a case that is not too large, and a note if it has a larger one.

    Only meshes of the case are considered: its program need not work on others.
    """
    from .._mesh import words

    largest = meshes[-1]
    chosen = next(
        (candidate for candidate in reversed(meshes) if candidate.size <= MOST), meshes[0]
    )
    if chosen.size == largest.size:
        return dict(chosen.shape), ""
    sizes = ",".join(f"{name}={size}" for name, size in largest.shape.items())
    note = (
        f"this is the mesh {words(chosen)} of the case; its largest, {words(largest)}, has "
        f"{largest.size} devices. --mesh {sizes} shows that one."
    )
    return dict(chosen.shape), note


def _data(outcome: CaseOutcome, inspection: Inspection | None) -> dict[str, Any]:
    case = {key: value for key, value in outcome.to_dict().items() if key != "verdict"}
    return {**case, "inspection": inspection.to_dict() if inspection else None}

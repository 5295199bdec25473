"""`shardwise check`: is every case of a file or folder right on any number of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .judging import Format, chosen_cases, finish, printer, run_all
from .running import path_as_it_was, start_devices
from .select import parse_expression, parse_mesh

if TYPE_CHECKING:
    from .._check import Case, Verdict


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.py[:NAME]|DIR",
            help="Files, one case of a file, or folders: all cases below.",
            show_default=False,
        ),
    ],
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=SIZES,...",
            help="Meshes to try instead of those of the cases: data=1,2,4,8,model=2.",
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="Text for people, JSON, or annotations for GitHub.")
    ] = Format.TEXT,
    select: Annotated[
        str | None,
        typer.Option(
            "-k", metavar="EXPRESSION", help="Only cases whose name matches: 'grad and not slow'."
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Start JAX with N virtual CPU devices, for programs that make a mesh of "
            "jax.devices().",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="A line for each thing that is wrong, no more.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name the meshes; show whole tracebacks.")
    ] = False,
) -> None:
    """Check that programs are right on any number of devices.

    Runs the cases: functions decorated with @sw.case(mesh=...) that return (f, args).
    """
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    sizes = None if mesh is None else parse_mesh(mesh)
    chosen = None if select is None else parse_expression(select)
    if devices is not None:
        start_devices(devices)
    with path_as_it_was():
        cases = chosen_cases(targets, chosen, select or "")
        outcomes = run_all(cases, "checking", _check(sizes), printer(output, quiet, verbose))
    finish(outcomes, output, quiet)


def _check(mesh: Any) -> Callable[[Case, Any, tuple[Any, ...]], Verdict]:
    from .._check import check as run

    return lambda case, f, args: run(f, *args, mesh=mesh or case.mesh, **case.options)

"""`shardwise prove`: is every case of a file or folder right for all inputs, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .judging import Format, chosen_cases, finish, printer, run_all
from .running import path_as_it_was, start_devices
from .select import parse_expression, parse_mesh

if TYPE_CHECKING:
    from .._check import Case
    from .._prove import Proof


def prove(
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
            help="Meshes to prove it on instead of those of the cases: data=64,model=8.",
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
    run: Annotated[
        bool,
        typer.Option(
            help="Whether what is not proved is run on small numbers, to confirm what is wrong."
        ),
    ] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="A line for each thing that is wrong, no more.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name the meshes; show whole tracebacks.")
    ] = False,
) -> None:
    """Prove that programs are right on a mesh, for all inputs, without running them.

    Reads the cases of `shardwise check`: functions decorated with @sw.case(mesh=...) that return
    (f, args). Exit codes: 0 proved, 1 refuted, 2 could not be run, 3 unknown.
    """
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other.")
    sizes = None if mesh is None else parse_mesh(mesh)
    chosen = None if select is None else parse_expression(select)
    if devices is not None:
        start_devices(devices)
    with path_as_it_was():
        cases = chosen_cases(targets, chosen, select or "")
        outcomes = run_all(cases, "proving", _prove(sizes, run), printer(output, quiet, verbose))
    finish(outcomes, output, quiet)


def _prove(mesh: Any, run: bool) -> Callable[[Case, Any, tuple[Any, ...]], Proof]:
    from .._prove import prove as prover

    def judge(case: Case, f: Any, args: tuple[Any, ...]) -> Proof:
        reference = case.options.get("reference")
        reference = reference if callable(reference) else None
        return prover(f, *args, mesh=mesh or case.mesh, reference=reference, run=run)

    return judge

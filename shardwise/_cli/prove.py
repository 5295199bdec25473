"""`shardwise prove`: prove from shapes that every case is right for all inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._analysis.faults import MEANING
from . import options
from .judging import CommandOptions, judge_all
from .select import parse_mesh

if TYPE_CHECKING:
    from .._analysis.check import Case
    from .._analysis.prove import Proof


def prove(
    targets: options.Targets = None,
    mesh: Annotated[
        str | None,
        options.meshes(
            "Meshes to prove it on instead of those of the cases: data=64,model=8, or data=n for "
            "every size that divides. A case with explain= is then proved for the arguments that "
            "it is explained with."
        ),
    ] = None,
    output: options.VerdictFormat = options.OutputFormat.TEXT,
    select: options.Select = None,
    devices: options.Devices = None,
    run: Annotated[
        bool,
        typer.Option(help="Run what is not proved on small numbers, to confirm what is wrong."),
    ] = True,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Prove that programs are right on a mesh, for all inputs, without running them.

    Reads the cases of `shardwise check`: functions decorated with @sw.case(mesh=...) that return
    (f, args). Exit codes: 0 proved, 1 refuted, 2 could not be run, 3 unknown.
    """
    options.refuse_both(quiet, verbose)
    sizes = None if mesh is None else parse_mesh(mesh)
    named, settings = options.prepare(targets, devices)
    command = CommandOptions(
        named, select, output, quiet, verbose, settings.ignore, explained=sizes is not None
    )
    judge_all(command, "proving", _prove(sizes, run), lambda fault: MEANING in fault.evidence)


def _prove(mesh: Any, run: bool) -> Callable[[Case, Any, tuple[Any, ...]], Proof]:
    def judge(case: Case, f: Any, args: tuple[Any, ...]) -> Proof:
        from .._analysis.prove import prove as prover

        reference = case.options.get("reference")
        reference = reference if callable(reference) else None
        return prover(f, *args, mesh=mesh or case.mesh, reference=reference, run=run)

    return judge

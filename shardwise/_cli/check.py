"""`shardwise check`: is every case of a file or folder right on any number of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._analysis.faults import NotFollowed
from . import options
from .judging import CommandOptions, judge_all
from .select import parse_mesh

if TYPE_CHECKING:
    from .._analysis.check import Case, Verdict


def check(
    targets: options.Targets = None,
    mesh: Annotated[
        str | None,
        options.meshes(
            "Meshes to try instead of those of the cases: data=1,2,4,8,model=2. data=n is every "
            "size up to 8 that divides."
        ),
    ] = None,
    output: options.VerdictFormat = options.OutputFormat.TEXT,
    select: options.Select = None,
    devices: options.Devices = None,
    all_meshes: Annotated[
        bool,
        typer.Option("--all-meshes", help="Run on smaller meshes too where a larger one is wrong."),
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print only the verified fixes, as patches.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--fix", help="Apply the verified fixes, and check again.")
    ] = False,
    no_fix: Annotated[bool, typer.Option("--no-fix", help="Do not look for fixes.")] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check that programs are right on any number of devices.

    Runs the cases: functions decorated with @sw.case(mesh=...) that return (f, args). A wrong one
    gets a fix where an edit of the source was found that makes it right: it was proved or run
    before it is shown.
    """
    options.refuse_both(quiet, verbose)
    if sum((diff, apply, no_fix)) > 1:
        raise typer.BadParameter("--diff, --fix and --no-fix exclude each other")
    output = options.OutputFormat.DIFF if diff else output
    sizes = None if mesh is None else parse_mesh(mesh)
    named, settings = options.prepare(targets, devices)
    command = CommandOptions(named, select, output, quiet, verbose, settings.ignore, apply=apply)
    judge = _check(sizes, not no_fix, all_meshes or settings.all_meshes)
    judge_all(command, "checking", judge, lambda fault: fault is not NotFollowed)


def _check(
    mesh: Any, fix: bool, all_meshes: bool
) -> Callable[[Case, Any, tuple[Any, ...]], Verdict]:
    def judge(case: Case, f: Any, args: tuple[Any, ...]) -> Verdict:
        from .._analysis.fixes import check as run

        options = {**case.options, "mesh": mesh or case.mesh, "all_meshes": all_meshes}
        return run(f, *args, fix=fix, **options)

    return judge

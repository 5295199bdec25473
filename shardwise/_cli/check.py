"""`shardwise check`: is every case of a file or folder right on any number of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .judging import Asked, judge_all
from .select import parse_mesh

if TYPE_CHECKING:
    from .._check import Case, Verdict


def check(
    targets: options.Targets = None,
    mesh: Annotated[
        str | None,
        options.meshes("Meshes to try instead of those of the cases: data=1,2,4,8,model=2."),
    ] = None,
    output: options.Judged = options.Format.TEXT,
    select: options.Select = None,
    devices: options.Devices = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Check again each time a Python file is saved.")
    ] = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Check that programs are right on any number of devices.

    Runs the cases: functions decorated with @sw.case(mesh=...) that return (f, args).
    """
    options.refuse_both(quiet, verbose)
    sizes = None if mesh is None else parse_mesh(mesh)
    if watch:
        from .watching import watch_and_check

        named, _ = options.prepare(targets, None)
        flags = {"--mesh": mesh, "-k": select, "--devices": devices, "-q": quiet, "-v": verbose}
        watch_and_check(named, flags, output)
    named, settings = options.prepare(targets, devices)
    asked = Asked(named, select, output, quiet, verbose, settings.ignore)
    judge_all(asked, "checking", _check(sizes), without=("SW408", "SW409"))


def _check(mesh: Any) -> Callable[[Case, Any, tuple[Any, ...]], Verdict]:
    def judge(case: Case, f: Any, args: tuple[Any, ...]) -> Verdict:
        from .._check import check as run

        return run(f, *args, mesh=mesh or case.mesh, **case.options)

    return judge

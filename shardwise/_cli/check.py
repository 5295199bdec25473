"""`shardwise check`: is every case of a file or folder right on any number of devices."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from .._errors import ShardwiseError, explain_error
from ._cases import Found, find_cases, program_of
from ._report import Outcome, as_json, full_text, github_commands, short_lines, summary
from ._running import console, path_as_it_was, patience, start_devices
from ._select import parse_expression, parse_mesh
from ._status import ExitCode


class Format(enum.StrEnum):
    """How the outcome is printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


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
        with contextlib.redirect_stdout(sys.stderr), patience("importing"):
            cases = find_cases(targets)
        if chosen is not None:
            cases = _selected(cases, chosen, select or "")
        outcomes = _run_all(cases, sizes, _printer(output, quiet, verbose))
    if output is Format.JSON:
        typer.echo(as_json(outcomes))
    elif not quiet:
        _show_summary(outcomes)
    raise typer.Exit(_exit_code(outcomes))


def _selected(cases: list[Found], matches: Callable[[str], bool], text: str) -> list[Found]:
    names = [f"{one.file.name}:{one.case.name}" if one.case else one.file.name for one in cases]
    chosen = [one for one, name in zip(cases, names, strict=True) if one.error or matches(name)]
    if not chosen:
        raise ShardwiseError(
            explain_error(
                "no case matches.", where=f"-k {text!r}", rule=f"Cases: {', '.join(names)}."
            )
        )
    return chosen


def _run_all(cases: list[Found], mesh: Any, show: Callable[[Outcome], None]) -> list[Outcome]:
    outcomes = []
    for number, one in enumerate(cases, 1):
        # What a program prints goes to standard error: standard output is for the outcome.
        line = f"checking {number} of {len(cases)}: {one.name}"
        with patience(line), contextlib.redirect_stdout(sys.stderr):
            outcome = _run(one, mesh)
        outcomes.append(outcome)
        show(outcome)
    return outcomes


def _run(found: Found, mesh: Any) -> Outcome:
    from .._check import check as run

    if found.case is None:
        return Outcome(found, error=found.error)
    began = time.perf_counter()
    try:
        f, args = program_of(found.case)
        verdict = run(f, *args, mesh=mesh or found.case.mesh, **found.case.options)
    except (Exception, SystemExit) as error:
        return Outcome(found, error=error)
    return Outcome(found, verdict, seconds=time.perf_counter() - began)


def _printer(output: Format, quiet: bool, verbose: bool) -> Callable[[Outcome], None]:
    """What to do with each outcome as it comes."""
    if output is Format.JSON:
        return lambda outcome: None
    if output is Format.GITHUB:
        return lambda outcome: _echo_all(github_commands(outcome))
    if quiet:
        return lambda outcome: _echo_all(short_lines(outcome))
    out = console()
    return lambda outcome: out.print(full_text(outcome, verbose))


def _echo_all(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _show_summary(outcomes: list[Outcome]) -> None:
    right = _exit_code(outcomes) is ExitCode.OK
    console().print(summary(outcomes), style="bold green" if right else "bold red")


def _exit_code(outcomes: list[Outcome]) -> ExitCode:
    """One wrong case answers the question, whatever could not be run."""
    if any(one.wrong for one in outcomes):
        return ExitCode.WRONG
    return ExitCode.NOT_RUN if any(one.error for one in outcomes) else ExitCode.OK

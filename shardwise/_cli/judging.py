"""What `check` and `prove` share: find the cases, judge each, print as it goes, exit."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import typer

from .._errors import ShardwiseError, explain_error
from .cases import Found, find_cases, program_of
from .report import Outcome, as_json, full_text, github_commands, short_lines, summary
from .running import console, patience
from .status import ExitCode

Judge = Callable[[Any, Callable[..., Any], tuple[Any, ...]], Any]
"""A case, its function and its arguments to a verdict or a proof."""


class Format(enum.StrEnum):
    """How the outcome is printed."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def chosen_cases(
    targets: list[str], matches: Callable[[str], bool] | None, text: str
) -> list[Found]:
    """The cases of files and folders whose names match."""
    with contextlib.redirect_stdout(sys.stderr), patience("importing"):
        cases = find_cases(targets)
    if matches is None:
        return cases
    names = [f"{one.file.name}:{one.case.name}" if one.case else one.file.name for one in cases]
    chosen = [one for one, name in zip(cases, names, strict=True) if one.error or matches(name)]
    if not chosen:
        raise ShardwiseError(
            explain_error(
                "no case matches.", where=f"-k {text!r}", rule=f"Cases: {', '.join(names)}."
            )
        )
    return chosen


def run_all(
    cases: list[Found], doing: str, judge: Judge, show: Callable[[Outcome], None]
) -> list[Outcome]:
    """Judge every case, and show each outcome as it comes."""
    outcomes = []
    for number, one in enumerate(cases, 1):
        # What a program prints goes to standard error: standard output is for the outcome.
        line = f"{doing} {number} of {len(cases)}: {one.name}"
        with patience(line), contextlib.redirect_stdout(sys.stderr):
            outcome = _run(one, judge)
        outcomes.append(outcome)
        show(outcome)
    return outcomes


def _run(found: Found, judge: Judge) -> Outcome:
    if found.case is None:
        return Outcome(found, error=found.error)
    began = time.perf_counter()
    try:
        f, args = program_of(found.case)
        verdict = judge(found.case, f, args)
    except (Exception, SystemExit) as error:
        return Outcome(found, error=error)
    return Outcome(found, verdict, seconds=time.perf_counter() - began)


def printer(output: Format, quiet: bool, verbose: bool) -> Callable[[Outcome], None]:
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


def finish(outcomes: list[Outcome], output: Format, quiet: bool) -> None:
    """Print what belongs to the end, and exit."""
    code = _exit_code(outcomes)
    if output is Format.JSON:
        typer.echo(as_json(outcomes))
    elif not quiet:
        console().print(summary(outcomes), style=COLORS.get(code, "bold red"))
    raise typer.Exit(code)


COLORS = {ExitCode.OK: "bold green", ExitCode.UNKNOWN: "bold yellow"}


def _exit_code(outcomes: list[Outcome]) -> ExitCode:
    """One wrong case answers the question, whatever could not be run."""
    if any(one.wrong for one in outcomes):
        return ExitCode.WRONG
    if any(one.error for one in outcomes):
        return ExitCode.NOT_RUN
    return ExitCode.UNKNOWN if any(one.unknown for one in outcomes) else ExitCode.OK

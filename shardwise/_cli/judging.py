"""The shared part of `check` and `prove`: find the cases, judge each, print, exit."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import typer

from .._base.doing import doing, telling
from .._base.errors import ShardwiseError
from .cases import LocatedCase, find_cases, program_of
from .fixing import apply_fixes, check_again, patches
from .options import OutputFormat
from .report import CaseOutcome, as_json, full_text, github_commands, short_lines, summary
from .running import console, path_as_it_was
from .sarif import as_sarif
from .select import parse_expression
from .silencing import LooksFor, Unused, unused_in
from .status import ExitCode

Judge = Callable[[Any, Callable[..., Any], tuple[Any, ...]], Any]
"""A function from a case, its function and its arguments to a verdict or a proof."""


@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """The options of the command line."""

    targets: list[str]
    select: str | None
    output: OutputFormat
    quiet: bool
    verbose: bool
    ignore: tuple[str, ...]
    explained: bool = False
    """Whether to use the arguments of `explain=`, if a case has them."""
    apply: bool = False
    """Whether to apply the fixes, and to judge again."""


def judge_all(options: CommandOptions, verb: str, judge: Judge, looks_for: LooksFor) -> NoReturn:
    """Judge every case, print each outcome at once, and exit.

    A comment about a fault that this judge does not look for is not reported as unused.
    """
    matches = None if options.select is None else parse_expression(options.select)
    with path_as_it_was():
        cases = _chosen(options.targets, matches, options.select or "")
        outcomes = _run_all(cases, verb, judge, options, _printer(options))
    unused: list[Unused] = []
    if matches is None:
        unused = unused_in(outcomes, options.targets, looks_for)
    _finish(outcomes, unused, options)


def _chosen(
    targets: list[str], matches: Callable[[str], bool] | None, text: str
) -> list[LocatedCase]:
    """Return the cases of files and folders whose names match."""
    with contextlib.redirect_stdout(sys.stderr), telling("importing"):
        cases = find_cases(targets)
    if matches is None:
        return cases
    names = [f"{c.file.name}:{c.case.name}" if c.case else c.file.name for c in cases]
    chosen = [c for c, name in zip(cases, names, strict=True) if c.error or matches(name)]
    if not chosen:
        raise ShardwiseError(
            "no case matches.",
            where=f"-k {text!r}",
            rule=f"Cases: {', '.join(names)}.",
            remedy=f"-k with a part of one of these names, such as -k {_word(names[0])}.",
        )
    return chosen


def _word(name: str) -> str:
    return name.rpartition(":")[2]


def _run_all(
    cases: list[LocatedCase],
    verb: str,
    judge: Judge,
    options: CommandOptions,
    show: Callable[[CaseOutcome], None],
) -> list[CaseOutcome]:
    outcomes = []
    for number, entry in enumerate(cases, 1):
        # Output of the program goes to standard error: standard output is for the outcome.
        line = f"{verb} {entry.name}" + (f" ({number} of {len(cases)})" if len(cases) > 1 else "")
        with telling(line), contextlib.redirect_stdout(sys.stderr):
            outcome = _run(entry, judge, options)
        outcomes.append(outcome)
        show(outcome)
    return outcomes


def _run(entry: LocatedCase, judge: Judge, options: CommandOptions) -> CaseOutcome:
    from .._analysis.faults import silencing

    if entry.case is None:
        return CaseOutcome(entry, error=entry.error)
    began = time.perf_counter()
    explained = entry.case.explain if options.explained else None
    arguments = f"explain={getattr(explained, '__name__', 'a function')}" if explained else ""
    try:
        doing("making its arguments")
        f, args = program_of(entry.case, explained)
        with silencing(options.ignore, entry.place):
            verdict = judge(entry.case, f, args)
    except (Exception, SystemExit) as error:
        return CaseOutcome(entry, error=error, arguments=arguments)
    seconds = time.perf_counter() - began
    return CaseOutcome(entry, verdict, seconds=seconds, program=f, arguments=arguments)


def _printer(options: CommandOptions) -> Callable[[CaseOutcome], None]:
    """Return the function that prints each outcome."""
    if options.output in (OutputFormat.JSON, OutputFormat.SARIF, OutputFormat.DIFF):
        return lambda outcome: None
    if options.output is OutputFormat.GITHUB:
        return lambda outcome: _echo_all(github_commands(outcome))
    if options.quiet:
        return lambda outcome: _echo_all(short_lines(outcome))
    out = console()
    return lambda outcome: out.print(full_text(outcome, options.verbose))


def _echo_all(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)


def _finish(outcomes: list[CaseOutcome], unused: list[Unused], options: CommandOptions) -> NoReturn:
    """Print the summary, and exit."""
    code = _exit_code(outcomes)
    if options.output is OutputFormat.JSON:
        typer.echo(as_json(outcomes, [comment.to_dict() for comment in unused]))
    elif options.output is OutputFormat.SARIF:
        typer.echo(as_sarif(outcomes, unused))
    elif options.output is OutputFormat.DIFF:
        _echo_all(patches(outcomes))
    elif options.output is OutputFormat.GITHUB:
        _echo_all(comment.github() for comment in unused)
    elif not options.quiet:
        _echo_all(map(str, unused))
    if options.output in (OutputFormat.TEXT, OutputFormat.GITHUB) and not options.quiet:
        console().print(summary(outcomes, len(unused)), style=COLORS.get(code, "bold red"))
    if options.apply and apply_fixes(outcomes, options.targets):
        raise typer.Exit(check_again())
    raise typer.Exit(code)


COLORS = {ExitCode.OK: "bold green", ExitCode.UNKNOWN: "bold yellow"}


def _exit_code(outcomes: list[CaseOutcome]) -> ExitCode:
    """Return the exit code: wrong takes precedence over not run, and that over unknown."""
    if any(outcome.wrong for outcome in outcomes):
        return ExitCode.WRONG
    if any(outcome.error for outcome in outcomes):
        return ExitCode.NOT_RUN
    return ExitCode.UNKNOWN if any(outcome.unknown for outcome in outcomes) else ExitCode.OK

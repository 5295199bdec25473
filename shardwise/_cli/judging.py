"""The shared part of `check` and `prove`: find the cases, judge each, print, exit."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from .._base.doing import doing
from .._base.errors import ShardwiseError
from .cases import LocatedCase, program_of
from .fixing import apply_fixes, check_again, patches
from .options import OutputFormat
from .report import CaseOutcome, as_json, full_text, github_commands, short_lines, summary
from .running import attempt, console, import_cases, path_as_it_was
from .sarif import as_sarif
from .select import Matches, parse_expression
from .silencing import LooksFor, Unused, unused_in
from .status import ExitCode

if TYPE_CHECKING:
    from .._analysis.check import Case

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
    show = _printer(options)
    matches = None if options.select is None else parse_expression(options.select)
    with path_as_it_was():
        cases = import_cases(options.targets)
        cases = cases if matches is None else _selected(cases, matches, options.select or "")
        outcomes = []
        for number, entry in enumerate(cases, 1):
            count = f" ({number} of {len(cases)})" if len(cases) > 1 else ""
            outcomes.append(_judge(entry, f"{verb} {entry.name}{count}", judge, options))
            show(outcomes[-1])
    unused = unused_in(outcomes, options.targets, looks_for) if matches is None else []
    _finish(outcomes, unused, options)


def _selected(cases: list[LocatedCase], matches: Matches, text: str) -> list[LocatedCase]:
    """Return the cases whose names match."""
    names = [f"{c.file.name}:{c.case.name}" if c.case else c.file.name for c in cases]
    chosen = [c for c, name in zip(cases, names, strict=True) if c.error or matches(name)]
    if not chosen:
        raise ShardwiseError(
            "no case matches.",
            where=f"-k {text!r}",
            rule=f"Cases: {', '.join(names)}.",
            remedy="-k with a part of one of these names, such as "
            f"-k {names[0].rpartition(':')[2]}.",
        )
    return chosen


def _judge(entry: LocatedCase, title: str, judge: Judge, options: CommandOptions) -> CaseOutcome:
    from .._analysis.faults import silencing

    explained = entry.case.explain if options.explained and entry.case else None
    arguments = f"explain={getattr(explained, '__name__', 'a function')}" if explained else ""

    def work(case: Case) -> tuple[Any, Any]:
        doing("making its arguments")
        f, args = program_of(case, explained)
        with silencing(options.ignore, entry.place):
            return f, judge(case, f, args)

    began = time.perf_counter()
    outcome, judged = attempt(entry, title, work)
    f, verdict = judged or (None, None)
    seconds = time.perf_counter() - began
    return dataclasses.replace(
        outcome, verdict=verdict, seconds=seconds, program=f, arguments=arguments
    )


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

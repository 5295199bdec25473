"""The output of `shardwise check`: outcomes as data, and as text, JSON or GitHub commands."""

from __future__ import annotations

import dataclasses
import json
import linecache
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import ShardwiseError, notes_of, prefix, text_of
from .cases import LocatedCase, shown

if TYPE_CHECKING:
    from rich.text import Text

    from .._analysis.check import Finding, Verdict
    from .._analysis.prove import Proof


@dataclasses.dataclass(frozen=True)
class CaseOutcome:
    """A case with its verdict, or with the error from running it."""

    entry: LocatedCase
    verdict: Verdict | Proof | None = None
    error: BaseException | None = None
    seconds: float = 0.0
    program: Any = None
    """The function that was judged."""
    arguments: str = ""
    """The source of its arguments, if not the case itself: `explain=large`."""

    @property
    def wrong(self) -> bool:
        """Whether the case is wrong and not silenced."""
        if self.verdict is None or self.verdict.ok or self.unknown:
            return False
        return any(finding.certain for finding in self.findings) or not self.silenced

    @property
    def unknown(self) -> bool:
        """Whether the proof is unknown and not silenced."""
        unknown = getattr(self.verdict, "status", "") == "unknown"
        return unknown and bool(self.findings or not self.silenced)

    @property
    def silenced(self) -> tuple[Finding, ...]:
        """The silenced findings."""
        return () if self.verdict is None else self.verdict.silenced

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings."""
        return () if self.verdict is None else self.verdict.findings

    @property
    def reason(self) -> str:
        """The reason why the case could not be run."""
        error = self.error
        if error is None:
            return ""
        if isinstance(error, SyntaxError):
            return "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, SystemExit):
            return f"it ends the process (SystemExit: {error.code})"
        text = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
        return "\n".join([text, *notes_of(error, "shardwise: ")])

    def silencers(self) -> Iterator[tuple[str, int, str]]:
        """Yield the comments that silenced something: file, line and code."""
        from .._analysis.faults import ignore_of, place_of

        places = [*place_of(self.program), self.entry.place]
        for finding in self.silenced:
            ignore = ignore_of(finding, places)
            if ignore is not None:
                yield ignore.file, ignore.line, finding.code

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        place = {"file": str(self.entry.file), "line": self.entry.line}
        case = self.entry.case.name if self.entry.case else None
        verdict = None if self.verdict is None else self.verdict.to_dict()
        error = None
        if self.error is not None:
            error = {"type": type(self.error).__name__, "message": str(self.error)}
        arguments = {"arguments": self.arguments} if self.arguments else {}
        return {"case": case, **place, **arguments, "verdict": verdict, "error": error}


def summary(outcomes: Sequence[CaseOutcome], unused: int = 0) -> str:
    """Return the summary: `3 cases, 1 wrong`."""
    wrong = sum(outcome.wrong for outcome in outcomes)
    not_run = sum(outcome.error is not None for outcome in outcomes)
    maybe = sum(not finding.certain for outcome in outcomes for finding in outcome.findings)
    parts = [f"{len(outcomes)} case{'s' * (len(outcomes) != 1)}"]
    unknown = sum(outcome.unknown for outcome in outcomes)
    parts += [f"{unknown} unknown"] * bool(unknown)
    parts += [f"{wrong} wrong"] * bool(wrong) + [f"{not_run} could not be run"] * bool(not_run)
    parts += ["all right" if len(outcomes) > 1 else "right"] * (
        not wrong and not not_run and not unknown
    )
    parts += [f"{maybe} warning{'s' * (maybe != 1)}"] * bool(maybe)
    silenced = sum(len(outcome.silenced) for outcome in outcomes)
    parts += [f"{silenced} silenced"] * bool(silenced)
    parts += [f"{unused} comment{'s' * (unused != 1)} without effect"] * bool(unused)
    return ", ".join(parts)


def as_json(outcomes: Sequence[CaseOutcome], unused: Sequence[Any] = ()) -> str:
    """Return everything as JSON."""
    data = {
        "ok": not any(outcome.wrong or outcome.error or outcome.unknown for outcome in outcomes),
        "wrong": sum(outcome.wrong for outcome in outcomes),
        "not_run": sum(outcome.error is not None for outcome in outcomes),
        "silenced": sum(len(outcome.silenced) for outcome in outcomes),
        "silence_nothing": list(unused),
        "cases": [outcome.to_dict() for outcome in outcomes],
    }
    return json.dumps(data, indent=2)


def github_commands(outcome: CaseOutcome) -> Iterator[str]:
    """Yield workflow commands, which GitHub shows as annotations in a pull request."""
    if outcome.error is not None:
        entry = outcome.entry
        yield command("error", shown(entry.file), entry.line, "could not be run", outcome.reason)
    for finding in outcome.findings:
        file, line, column = place(finding, outcome.entry)
        level = "error" if finding.certain else "warning"
        message = f"{finding.message}{advised(finding)}\nCase: {outcome.entry.name}"
        yield command(level, file, line, finding.code, message, column)


def advised(finding: Finding) -> str:
    """Return the advice for a finding, on new lines."""
    from .._analysis.check import advice

    label, text = advice(finding) or ("", "")
    return f"\n{label}: {text}" if label else ""


def command(level: str, file: str, line: int, title: str, message: str, column: int = 0) -> str:
    """Return one workflow command."""
    where = f"file={_property(Path(file).as_posix())},line={line}"
    at = f",col={column}" if column else ""
    return f"::{level} {where}{at},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def short_lines(outcome: CaseOutcome) -> Iterator[str]:
    """Yield one line for each certain finding: `train.py:31:9: SW101 result is ...`."""
    if outcome.error is not None:
        entry = outcome.entry
        yield f"{shown(entry.file)}:{entry.line}: {entry.name} could not be run: {outcome.reason}"
    for finding in outcome.findings:
        if finding.certain:
            file, line, column = place(finding, outcome.entry)
            yield f"{file}:{line}:{column}: {finding.code} {finding.message}"


def place(finding: Finding, entry: LocatedCase) -> tuple[str, int, int]:
    """Return file, line and column of a finding, or of the declaration of its case."""
    where = finding.where
    if not where.file:
        return shown(entry.file), entry.line, 1
    return shown(where.file), where.line, where.column + 1


def full_text(outcome: CaseOutcome, verbose: bool) -> Text:
    """Return the text of a case: a headline, then the findings or the error."""
    from rich.text import Text

    name = outcome.entry.name
    if outcome.verdict is not None:
        return verdict_text(outcome.verdict, name, verbose, outcome.seconds, outcome.arguments)
    assert outcome.error is not None
    text = Text.assemble((name, "bold"), ": ", ("could not be run", "bold red"))
    text.append(_arguments_note(outcome.arguments), style="dim")
    text.append(f"\n{_indented(outcome.reason)}\n")
    lines = _traceback(outcome.error) if verbose else last_line(outcome.error)
    return text.append(f"{_indented(lines)}\n" if lines else "", style="dim")


def verdict_text(
    verdict: Verdict | Proof,
    name: str,
    verbose: bool,
    seconds: float | None = None,
    arguments: str = "",
) -> Text:
    """Return a headline, and each finding with its line of source."""
    from rich.text import Text

    from .._analysis.check import counted, told_once

    text = Text.assemble((name, "bold"), ": ")
    for number, (word, where) in enumerate(verdict.head(brief=not verbose)):
        style = STYLES.get(word, "bold green")
        text.append("; " if number else "").append(word, style=style).append(f" {where}")
    text.append(_arguments_note(arguments), style="dim")
    if verbose and seconds is not None:
        count = getattr(verdict, "leaves", None) or len(getattr(verdict, "results", ()))
        results = f"{count} result{'s' * (count != 1)} compared"
        text.append(f" ({results}, {seconds:.1f} s)", style="dim")
    if verdict.silenced:
        text.append(f" ({counted(verdict.silenced)})", style="dim")
    text.append(f"\n{_indented(verdict.checked)}" if verdict.checked else "", style="dim")
    for finding in told_once(verdict.findings):
        text.append("\n\n").append(_finding(finding))
    numbers = getattr(verdict, "numbers", "")
    text.append(f"\n\n{_indented(numbers)}" if numbers else "", style="dim")
    return text.append("\n" if verdict.findings else "")


def _arguments_note(arguments: str) -> str:
    return f" (with the arguments of {arguments})" if arguments else ""


STYLES = {"WRONG": "bold red", "REFUTED": "bold red", "UNKNOWN": "bold yellow"}


def _finding(finding: Finding) -> Text:
    from rich.text import Text

    color = "red" if finding.certain else "yellow"
    text = Text.assemble((finding.code, f"bold {color}"))
    text.append(finding.doubt, style=color)
    text.append(f": {finding.message}", style="bold")
    if finding.where.file:
        text.append(_excerpt(finding, color))
    return text.append(_advice(finding))


def _advice(finding: Finding) -> Text:
    """Return the fix as a coloured diff, or the advice."""
    from rich.text import Text

    from .._analysis.check import advice

    text = Text()
    label, body = advice(finding) or ("", "")
    if not label:
        return text
    text.append(f"\n  {label}: ", style="bold cyan")
    for number, line in enumerate(body.split("\n")):
        style = DIFF.get(line[:1], "") if finding.fix and number else ""
        text.append("\n    " * bool(number)).append(line, style=style)
    return text


DIFF = {"+": "green", "-": "red", "@": "dim"}


def _excerpt(finding: Finding, color: str) -> Text:
    """Return the line with its neighbours and carets under the call, as linters do."""
    from rich.text import Text

    from .._analysis.check import underline

    where = finding.where
    place = f"{shown(where.file)}:{where.line}:{where.column + 1}"
    text = Text.assemble("\n  ", ("-->", "blue"), f" {place}", (f" in {where.function}", "dim"))
    width = len(str(where.line + 1))
    for number in (where.line - 1, where.line, where.line + 1):
        source = linecache.getline(where.file, number).rstrip()
        if source:
            text.append(f"\n  {number:>{width}} | ", style="blue").append(source)
        if source and number == where.line:
            text.append(f"\n  {'':>{width}} | ", style="blue")
            text.append(underline(where), style=f"bold {color}")
    return text.append(f"\n  through {where.through}" if where.through else "", style="dim")


def last_line(error: BaseException) -> str:
    """Return the last line of the user's code in the traceback of an error that is not ours."""
    if isinstance(error, ShardwiseError):
        return ""
    from .. import _jax

    frames = traceback.extract_tb(error.__traceback__)
    foreign = (prefix(Path(__file__).parents[1]), *_jax.LIBRARIES, "<")
    user_frames = [
        frame for frame in frames if frame.line and not frame.filename.startswith(foreign)
    ]
    return (
        f"--> {shown(user_frames[-1].filename)}:{user_frames[-1].lineno}\n  {user_frames[-1].line}"
        if user_frames
        else ""
    )


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())

"""The judge's verdict as data, from which text for the terminal and JSON are derived."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

from .._base.errors import ShardwiseError
from .._base.plain import Plain
from .exercise import Exercise
from .pitfalls import Pitfall
from .text import visible

RIGHT, WRONG, NOT_RUN = "right", "wrong", "could not run"


@dataclasses.dataclass(frozen=True)
class Line(Plain):
    """A line of the learner's file."""

    number: int
    text: str


@dataclasses.dataclass(frozen=True)
class SolutionRun:
    """One run of a solution: its mesh and its outcome."""

    sizes: Mapping[str, int]
    unit: str
    ok: bool
    expected: str = ""
    found: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The mesh as text: `4 devices`, `data 2 x model 2`, `8 shards`."""
        if self.unit == "answer":
            return "your answer"
        if len(self.sizes) > 1:
            return " x ".join(f"{name} {size}" for name, size in self.sizes.items())
        (count,) = self.sizes.values()
        return f"{count} {self.unit}{'s' * (count != 1)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return {
            "mesh": dict(self.sizes),
            "title": self.title,
            "ok": self.ok,
            "expected": self.expected,
            "found": self.found,
            "error": self.error,
            "seconds": round(self.seconds, 2),
        }


@dataclasses.dataclass(frozen=True)
class DeviceValues:
    """A value at the line of the mistake, as each device has it."""

    value: str
    rows: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the value as plain data."""
        return {"value": self.value, "devices": [{"device": a, "holds": b} for a, b in self.rows]}


@dataclasses.dataclass(frozen=True)
class Judgement(Plain):
    """The verdict on one solution."""

    exercise: str
    title: str
    file: str
    status: str
    runs: tuple[SolutionRun, ...] = ()
    pitfall: Pitfall | None = None
    reason: str = ""
    """What happened: a sentence, or the message of the error."""
    line: Line | None = None
    held_on: str = ""
    held: tuple[DeviceValues, ...] = ()
    hint: str = ""
    printed: str = ""
    seconds: float = 0.0
    """The elapsed time until the verdict."""
    cpu: float = 0.0
    """The CPU seconds of all runs together."""
    seed: int = 0

    @classmethod
    def of_failure(cls, exercise: Exercise, file: str, error: Exception) -> Judgement:
        """Return the verdict on a file that could not be judged."""
        if isinstance(error, ShardwiseError):
            reason = str(error)
        else:
            reason = (
                f"The judge failed on this file ({type(error).__name__}: {str(error)[:300]}). That "
                "is a defect of shardwise: please report it, with the file."
            )
        return cls(exercise.name, exercise.title, visible(file), NOT_RUN, reason=visible(reason))

    @property
    def ok(self) -> bool:
        """Whether the solution is right."""
        return self.status == RIGHT

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            **super().to_dict(),
            "ok": self.ok,
            "table": [
                {"title": title, "ok": ok, "expected": expected, "found": found}
                for title, ok, expected, found in self.table()
            ],
            "seconds": round(self.seconds, 2),
            "cpu": round(self.cpu, 2),
        }

    def table(self) -> list[tuple[str, bool, str, str]]:
        """Return the rows of the table: mesh, whether it is right, expected and found result.

        An error that is quoted below the table is only named in it. If all results are right but
        the solution is wrong, an extra row gives the pitfall.
        """
        rows = [(run.title, run.ok, run.expected, self._found(run)) for run in self.runs]
        if rows and self.status == WRONG and self.pitfall and all(run.ok for run in self.runs):
            rows.append(("how it is done", False, "", self.pitfall.title))
        return rows

    def _found(self, run: SolutionRun) -> str:
        if run.ok:
            return ""
        kind, colon, _ = run.error.partition(":")
        named = colon and self.reason.startswith(kind + colon)
        if named:
            return f"stops with {kind}"
        return run.error or (run.found if run.expected else f"found {run.found}")

    def _table(self, width: int) -> list[tuple[str, str]]:
        rows = self.table()
        wide = max((len(title) for title, *_ in rows), default=0)
        room = max(width, 40)
        lines = []
        for title, ok, expected, found in rows:
            line = f"  {title:<{wide}}  {'right' if ok else 'wrong'}"
            style = "right" if ok else "wrong"
            both = f"  expected {expected}, found {found}" if expected else f"  {found}" * (not ok)
            if len(line + both) <= room:
                lines.append((line + both, style))
                continue
            # Results and errors are never cut: they get lines of their own.
            parts = [f"expected {expected}", f"found {found}"] if expected else [found]
            lines.append((line, style))
            lines += [line_ for part in parts for line_ in _wrapped(part, room, style, "    ")]
        return lines

    def text(self, width: int = 80) -> str:
        """Return the verdict as text without colour."""
        return "\n".join(line for line, _ in self.lines(width))

    def lines(self, width: int = 80) -> list[tuple[str, str]]:
        """Return the lines of the verdict, each with its style."""
        lines: list[tuple[str, str]] = []
        style = {RIGHT: "right", WRONG: "wrong"}.get(self.status, "warn")
        lines.append((f"{self.exercise}: {self.status}", f"{style} head"))
        lines += self._table(width)
        if self.pitfall is not None:
            lines.append(("", ""))
            lines += _wrapped(f"{self.pitfall.title} [{self.pitfall.name}]", width, "head")
            lines += _wrapped(self.pitfall.text, width, "", "  ")
        if self.reason:
            lines.append(("", ""))
            for line in self.reason.splitlines():
                lines += _wrapped(line, width, "soft", "  ")
        if self.line is not None:
            lines += [("", ""), (f"  line {self.line.number}:  {self.line.text}", "code")]
        for value in self.held:
            lines.append((f"  {value.value}, on {self.held_on}:", "soft"))
            wide = max(len(device) for device, _ in value.rows)
            lines += [(f"    {device:<{wide}}  {holds}", "code") for device, holds in value.rows]
        if self.printed.strip() and not self.ok:
            lines += [("", ""), ("  It printed:", "soft")]
            lines += [(f"    {line}", "soft") for line in self.printed.strip().splitlines()[:8]]
        if self.hint:
            lines.append(("", ""))
            lines += _wrapped(f"Hint: {self.hint}", width, "hint")
        return lines


def _wrapped(text: str, width: int, style: str, indent: str = "") -> list[tuple[str, str]]:
    lines = textwrap.wrap(
        text,
        max(30, width),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [(line, style) for line in lines] or [("", "")]

"""The judge: run a solution on 1, 2, 4 and 8 devices, compare the results, and explain mistakes.

The solution runs in separate processes (`sandbox`), which report its results and the calls that
it made. The expected results are computed here, from inputs that are drawn anew each time.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import math
import os
import re
import stat
import time
import tokenize
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._base.errors import ShardwiseError
from . import compare, confirm, diagnose
from .cases import ExerciseCase, cases, job
from .exercise import Exercise
from .looking import fix_in, seen_at, seen_in_loop
from .pitfalls import Pitfall
from .sandbox.host import Limits, Ran, Sandbox
from .text import visible
from .verdict import NOT_RUN, RIGHT, WRONG, Judgement, Line, SolutionRun

SOURCE = 1 << 20
"""The maximum size of a solution in bytes."""

ENCODINGS = re.compile("utf-8|ascii|iso8859|cp[0-9]|koi8|mac-|gb|big5|euc_|shift_jis")
"""Encodings of text. Other codecs, such as punycode, can take minutes for a file of this size."""

UNIT = {"mesh": "device", "replace": "device", "shards": "shard", "answer": "answer"}
KEEP_THE_CHECK = (
    "Do not pass check_vma=False here: that only silences the type check, and the result is still "
    "each device's own share."
)


class Judge:
    """A judge of solutions. It keeps its process running between solutions, to save time."""

    def __init__(
        self,
        limits: Limits | None = None,
        look: bool = True,
        without: Collection[str] = (),
        confirming: bool = False,
    ):
        """Make a judge.

        Args:
            limits: The limits of each run.
            look: Whether to find the line of a mistake, and what each device holds there.
            without: The walls to leave out.
            confirming: Whether the traced program of a right solution is run in another process.
        """
        self.sandbox = Sandbox(limits, without)
        self.look = look
        self.confirming = confirming

    def __enter__(self) -> Judge:
        self.sandbox.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.sandbox.close()

    def judge_file(self, exercise: Exercise, file: Path, seed: int | None = None) -> Judgement:
        """Return the verdict on a file."""
        return self.judge(exercise, read(file), str(file), seed)

    def judge(
        self, exercise: Exercise, source: str, file: str = "", seed: int | None = None
    ) -> Judgement:
        """Return the verdict on the text of a solution.

        Errors of the solution are part of the verdict. Only a damaged exercise, or a sandbox that
        does not start, raises an error.
        """
        began = time.monotonic()
        seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        self.sandbox.hide(exercise.folder)
        making = _Making(self, exercise, source, file or exercise.file_name, seed)
        try:
            judgement = making.judgement()
        except ShardwiseError:
            raise
        except Exception as error:  # the next file must still be judged
            judgement = Judgement.of_failure(exercise, making.file, error)
        return dataclasses.replace(judgement, seconds=time.monotonic() - began, seed=seed)


def read(file: Path) -> str:
    """Read a solution in the encoding that it declares, as Python does."""
    try:
        raw = _bytes(file)
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        if not ENCODINGS.match(codecs.lookup(encoding).name):
            raise _unreadable(file, f"its encoding {visible(encoding)} is not accepted: use UTF-8")
        return raw.decode(encoding)
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    except (SyntaxError, ValueError, LookupError) as error:  # LookupError: unknown encoding
        raise _unreadable(file, "it is not text in the encoding it declares, or UTF-8") from error


def _bytes(file: Path) -> bytes:
    """Read a regular file; raise for others, since a pipe or a device may never end."""
    if not stat.S_ISREG(os.stat(file).st_mode):  # opening a device may have side effects
        raise _unreadable(file, "it is not a regular file")
    opened = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(opened, "rb") as stream:
        if not stat.S_ISREG(os.fstat(opened).st_mode):  # it was replaced in the meantime
            raise _unreadable(file, "it is not a regular file")
        raw = stream.read(SOURCE + 1)
    if len(raw) > SOURCE:
        raise _unreadable(file, f"it is larger than {SOURCE >> 10} KiB")
    return raw


def _unreadable(file: Path, why: str) -> ShardwiseError:
    return ShardwiseError(
        f"it cannot be read ({why})",
        where=visible(str(file)),
        remedy="name the Python file with the solution.",
    )


class _Making:
    """The state of a judgement in progress."""

    def __init__(self, judge: Judge, exercise: Exercise, source: str, file: str, seed: int):
        self.judge, self.exercise, self.source = judge, exercise, source
        self.file, self.seed = file, seed
        self.name = Path(file).name if Path(file).suffix == ".py" else exercise.file_name

    def judgement(self) -> Judgement:
        self.judge.sandbox.start()
        self.cases = cases(self.exercise, self.seed, self.judge.sandbox)
        jobs = [job(self.exercise, case.sizes, case.args, "run") for case in self.cases]
        self.ran = self.judge.sandbox.run(jobs, self.source, self.name)
        self.cpu = sum(ran.cpu for ran in self.ran)
        for error in map(_error, self.ran):
            if error.get("type") == "Missing":
                return self._judgement(NOT_RUN, (), reason=error["message"])
            if error.get("type") == "NotPython":
                reason = f"It is not Python: {error['message']}."
                return self._judgement(
                    NOT_RUN, (), reason=reason, line=self._line(error.get("line", 0))
                )
        self.values = [(ran.data or {}).get("value") for ran in self.ran]
        runs = tuple(map(self._run, self.cases, self.ran, self.values))
        name, reason, line = self._pitfall(runs)
        if not name and self.judge.confirming:
            name, reason = confirm.pitfall(
                self.exercise, self.cases, self.judge.sandbox, self.source, self.name, self.seed
            )
        if not name:
            return self._judgement(RIGHT, runs)
        return self._wrong(runs, name, reason, line)

    def _run(self, case: ExerciseCase, ran: Ran, value: Any) -> SolutionRun:
        unit = UNIT[self.exercise.form]
        error = _error(ran)
        if error:
            first, *_ = error["message"].splitlines() or [""]
            message = f"{error['type']}: {first}".rstrip(": ")
            return SolutionRun(case.sizes, unit, False, error=message, seconds=ran.seconds)
        if ended := diagnose.of_ending(ran):
            return SolutionRun(case.sizes, unit, False, error=ended[1], seconds=ran.seconds)
        ok = compare.same(value, case.expected)
        want, got = compare.shapes(value, case.expected) or (
            compare.shown(case.expected, value),
            compare.shown(value, case.expected),
        )
        secret = ok or unit == "answer"
        return SolutionRun(case.sizes, unit, ok, "" if secret else want, got, seconds=ran.seconds)

    def _pitfall(self, runs: Sequence[SolutionRun]) -> tuple[str, str, int]:
        """Return the name of the pitfall (empty if all is right), the reason, and the line or 0."""
        for ran in sorted(self.ran, key=lambda ran_: ran_.skipped):
            if ended := diagnose.of_ending(ran):
                return *ended, 0
            if _error(ran).get("type") == "Judge":
                return "tampered", _error(ran)["message"], 0
        if name := self._noticed():
            return name
        for ran in self.ran:
            if error := _error(ran):
                name = self._renamed(diagnose.of_error(error, self.exercise.function))
                words = f"{error['type']}: {error['message']}".split("\n[caused by")[0]
                return name, self._advised(_shortened(words)), self._named_line(error)
        outcomes = [(c.sizes, v, c.expected) for c, v in zip(self.cases, self.values, strict=True)]
        if not all(run.ok for run in runs):
            mistakes = [case.mistakes for case in self.cases]
            name = diagnose.of_numbers(outcomes, mistakes)
            if name in ANY_MISTAKE:
                name = self._lacking() or name
            return self._renamed(name), "", 0
        return self._lacking(), "", 0

    def _advised(self, words: str) -> str:
        """Return JAX's message, with a warning if it advises turning its check off."""
        allowed = any(what == "unchecked" for what, _ in self.exercise.requires)
        if allowed or "check_vma=False" not in words:
            return words
        return f"{words}\n\n{KEEP_THE_CHECK}"

    def _named_line(self, error: Mapping[str, Any]) -> int:
        """Return the line that an error names, or the last line in the learner's code before it."""
        named = re.search(rf"{re.escape(self.name)}:(\d{{1,6}})", error["message"])
        return int(named[1]) if named else error.get("line", 0)

    def _renamed(self, name: str) -> str:
        """Return the exercise's own name for a common pitfall, from `SAME` in its task.py."""
        same = getattr(self.exercise.task, "SAME", {})
        return same.get(name, name)

    def _noticed(self) -> tuple[str, str, int] | None:
        notice = getattr(self.exercise.task, "notice", None)
        if notice is None:
            return None
        for case, ran in zip(self.cases, self.ran, strict=True):
            facts = {**_facts(ran), "finished": not _error(ran), "source": self.source}
            if pitfall := notice(facts, dict(case.sizes), *case.args):
                name, line = pitfall if isinstance(pitfall, tuple) else (pitfall, 0)
                return name, "", int(line)
        return None

    def _lacking(self) -> str:
        pairs = list(zip(self.cases, self.ran, strict=True))
        several = [(c, r) for c, r in pairs if math.prod(c.sizes.values()) > 1] or pairs
        pitfalls = (
            diagnose.of_requirements(self.exercise, _facts(ran), case.sizes)
            for case, ran in several
        )
        return next((name for name in pitfalls if name), "")

    def _wrong(
        self, runs: tuple[SolutionRun, ...], name: str, reason: str, number: int
    ) -> Judgement:
        pitfall = self.exercise.pitfall(name)
        refused = diagnose.REFUSED in reason
        spread = any(_facts(ran).get("shard_maps") for ran in self.ran) or refused
        worth = name not in NOTHING_TO_SEE and (spread or self.exercise.form == "mesh")
        looked = self._look(runs, refused) if worth and self.judge.look else None
        number = 0 if refused and looked else number
        line, on, values = number, "", ()
        if looked:
            line, on, values = seen_at(looked, number)
        elif self.exercise.form == "shards" and len(self.ran) > 1 and _facts(self.ran[1]):
            on, values = seen_in_loop(_facts(self.ran[1]), self.cases[1].sizes)
        return self._judgement(
            WRONG,
            runs,
            pitfall=pitfall,
            reason=reason,
            line=self._line(line),
            held_on=on,
            held=values,
            hint=self._hint(pitfall, fix_in(looked)),
        )

    def _hint(self, pitfall: Pitfall, fix: str) -> str:
        """Return the hint for a pitfall; for an unspecific pitfall, prefer a verified fix."""
        hints = [pitfall.hint, fix, *self.exercise.hints]
        return next(filter(None, [fix, *hints] if pitfall.name in ANY_MISTAKE else hints), "")

    def _look(self, runs: tuple[SolutionRun, ...], refused: bool) -> dict[str, Any] | None:
        """Inspect the values on the smallest mesh of several devices with a wrong result.

        If JAX `refused` the program because its results differ between the devices, its check is
        turned off, since otherwise there would be no values.
        """
        several = [
            (case, run)
            for case, run in zip(self.cases, runs, strict=True)
            if math.prod(case.sizes.values()) > 1
        ]
        wrong = [case for case, run in several if not run.ok] or [case for case, _ in several]
        if not wrong or self.exercise.form == "answer":
            return None
        task = job(self.exercise, wrong[0].sizes, wrong[0].args, "look")
        (ran,) = self.judge.sandbox.run([{**task, "unchecked": refused}], self.source, self.name)
        self.cpu += ran.cpu
        return ran.data

    def _line(self, number: int) -> Line | None:
        lines = self.source.splitlines()
        if not 0 < number <= len(lines):
            return None
        return Line(number, visible(_shortened(lines[number - 1].strip(), 200)))

    def _judgement(self, status: str, runs: tuple[SolutionRun, ...], **more: Any) -> Judgement:
        printed = next((ran.printed for ran in getattr(self, "ran", ()) if ran.printed), "")
        return Judgement(
            exercise=self.exercise.name,
            title=self.exercise.title,
            file=visible(self.file),
            status=status,
            runs=runs,
            printed=printed,
            cpu=getattr(self, "cpu", 0.0),
            **more,
        )


ANY_MISTAKE = ("follows-the-mesh", "n-times", "one-nth")
"""Unspecific pitfalls, which describe how a result is wrong, but not why."""


NOTHING_TO_SEE = {
    "not-started",
    "too-slow",
    "too-much-memory",
    "too-much-output",
    "ends-the-process",
    "refused",
    "tampered",
    "unconfirmed",
    "signature",
    "not-an-int",
    "no-wrt",
}
"""Pitfalls that values on the devices cannot explain."""


def _error(ran: Ran) -> Mapping[str, Any]:
    return (ran.data or {}).get("error", {})


def _facts(ran: Ran) -> Mapping[str, Any]:
    return (ran.data or {}).get("facts", {})


def _shortened(text: str, most: int = 900) -> str:
    return text if len(text) <= most else text[:most] + " ..."

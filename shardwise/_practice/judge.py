"""The judge: run a solution on 1, 2, 4 and 8 devices, compare, and say what is wrong with it.

The solution runs in processes of its own (`sandbox`), which say what it returned and what it was
seen to do. What is right is computed here, from inputs that are drawn anew each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import ShardwiseError, explain_error
from . import compare, diagnose
from .exercise import Exercise
from .looking import seen_at, seen_in_loop
from .sandbox import wire
from .sandbox.host import Limits, Ran, Sandbox
from .verdict import NOT_RUN, RIGHT, WRONG, Judgement, Line, Run

UNIT = {"mesh": "device", "replace": "device", "shards": "shard", "answer": "answer"}
DEVICES = 8
"""How many devices a solution finds that makes a mesh by itself of as many as it has shards."""

KEEP_THE_CHECK = (
    "Do not pass check_vma=False here: that only silences the type check, and the result is still "
    "each device's own share."
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of an exercise: a mesh, the arguments, and what should come out."""

    sizes: Mapping[str, int]
    args: tuple[Any, ...]
    expected: Any
    mistakes: Mapping[str, Any]


class Judge:
    """Judges solutions; the process that runs them stays warm from one to the next."""

    def __init__(self, limits: Limits | None = None, look: bool = True):
        self.sandbox = Sandbox(limits)
        self.look = look

    def __enter__(self) -> Judge:
        self.sandbox.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.sandbox.close()

    def judge_file(self, exercise: Exercise, file: Path, seed: int | None = None) -> Judgement:
        """The verdict on a file."""
        return self.judge(exercise, read(file), str(file), seed)

    def judge(
        self, exercise: Exercise, source: str, file: str = "", seed: int | None = None
    ) -> Judgement:
        """The verdict on the text of a solution."""
        began = time.monotonic()
        seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        made = _Making(self, exercise, source, file or exercise.file_name, seed)
        found = made.judgement()
        return dataclasses.replace(found, seconds=time.monotonic() - began, seed=seed)


def read(file: Path) -> str:
    """The text of a solution."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ShardwiseError(
            explain_error(
                f"it cannot be read ({why})",
                where=str(file),
                remedy="name the Python file with the solution.",
            )
        ) from error


def cases(exercise: Exercise, seed: int, judge: Judge) -> list[Case]:
    """The runs of an exercise, with what should come out of each."""
    task = exercise.task
    found = []
    for sizes in exercise.meshes:
        # The same numbers for every mesh: only the mesh differs.
        args = tuple(task.inputs(np.random.default_rng(seed), dict(sizes)))
        if hasattr(task, "expected"):
            expected = task.expected(*args)
        else:
            expected = _by_solution(exercise, sizes, args, judge)
        mistakes = task.mistakes(dict(sizes), *args) if hasattr(task, "mistakes") else {}
        apart = {k: v for k, v in mistakes.items() if not compare.same(_plain(v), expected)}
        found.append(Case(sizes, args, expected, {k: _plain(v) for k, v in apart.items()}))
    return found


def _plain(value: Any) -> Any:
    return wire.unpack(wire.pack(value))


def _by_solution(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], judge: Judge
) -> Any:
    """What the exercise's own solution gives on one device."""
    ones = dict.fromkeys(sizes, 1)
    (ran,) = judge.sandbox.run(
        [_job(exercise, ones, args, "run")], exercise.solution, "solution.py"
    )
    if ran.data is None or "value" not in ran.data:
        raise ShardwiseError(
            explain_error(
                f"its solution gives no result on one device ({(ran.data or {}).get('error')})",
                where=str(exercise.folder),
                rule="Without expected(...) in task.py the solution says what is right.",
                remedy="mend solution.py, or write expected(*inputs) in task.py.",
            )
        )
    return wire.unpack(ran.data["value"])


def _job(
    exercise: Exercise, sizes: Mapping[str, int], args: tuple[Any, ...], kind: str
) -> dict[str, Any]:
    count = math.prod(sizes.values())
    own = exercise.form == "replace"
    return {
        "kind": kind,
        "exercise": exercise.name,
        "function": exercise.function,
        "args": args,
        "mesh": dict(sizes),
        "pass_mesh": exercise.form == "mesh",
        "replace": count if own else None,
        "devices": DEVICES if kind == "look" or exercise.form == "shards" else count,
        "secret": [str(exercise.folder)],
    }


class _Making:
    """One judgement in the making."""

    def __init__(self, judge: Judge, exercise: Exercise, source: str, file: str, seed: int):
        self.judge, self.exercise, self.source = judge, exercise, source
        self.file, self.seed = file, seed
        self.name = Path(file).name if Path(file).suffix == ".py" else exercise.file_name

    def judgement(self) -> Judgement:
        try:
            compile(self.source, self.name, "exec")
        except (SyntaxError, ValueError) as error:
            number = getattr(error, "lineno", 0) or 0
            reason = f"It is not Python: {getattr(error, 'msg', None) or error}."
            return self._said(NOT_RUN, (), reason=reason, line=self._line(number))
        self.judge.sandbox.start()
        self.cases = cases(self.exercise, self.seed, self.judge)
        jobs = [_job(self.exercise, case.sizes, case.args, "run") for case in self.cases]
        self.ran = self.judge.sandbox.run(jobs, self.source, self.name)
        self.cpu = sum(one.cpu for one in self.ran)
        missing = next((e for e in map(_error, self.ran) if e.get("type") == "Missing"), None)
        if missing:
            return self._said(NOT_RUN, (), reason=str(missing["message"]))
        self.values = [_value(one) for one in self.ran]
        runs = tuple(map(self._run, self.cases, self.ran, self.values))
        name, reason, line = self._pitfall(runs)
        if not name:
            return self._said(RIGHT, runs)
        return self._wrong(runs, name, reason, line)

    def _run(self, case: Case, ran: Ran, value: Any) -> Run:
        unit = UNIT[self.exercise.form]
        error = _error(ran)
        if error:
            first, *_ = str(error["message"]).splitlines() or [""]
            said = f"{error['type']}: {first}".rstrip(": ")
            return Run(case.sizes, unit, False, error=said, seconds=ran.seconds)
        if ended := diagnose.of_ending(ran):
            return Run(case.sizes, unit, False, error=ended[1], seconds=ran.seconds)
        ok = compare.same(value, case.expected)
        want, got = compare.shapes(value, case.expected) or (
            compare.shown(case.expected, value),
            compare.shown(value, case.expected),
        )
        secret = ok or unit == "answer"
        return Run(case.sizes, unit, ok, "" if secret else want, got, seconds=ran.seconds)

    def _pitfall(self, runs: Sequence[Run]) -> tuple[str, str, int]:
        """The pitfall's name (nothing, if all is right), what happened, and the line if known."""
        for ran in sorted(self.ran, key=lambda one: one.skipped):
            if ended := diagnose.of_ending(ran):
                return *ended, 0
            if _error(ran).get("type") == "Judge":
                return "tampered", str(_error(ran)["message"]), 0
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
            name = diagnose.of_numbers(self.exercise, outcomes, mistakes)
            if name in ("follows-the-mesh", "n-times", "one-nth"):
                name = self._lacking() or name
            return self._renamed(name), "", 0
        return self._lacking(), "", 0

    def _advised(self, words: str) -> str:
        """JAX's words; where they advise to turn its check off, with what that would do."""
        wanted = any(what == "unchecked" for what, _ in self.exercise.requires)
        if wanted or "check_vma=False" not in words:
            return words
        return f"{words}\n\n{KEEP_THE_CHECK}"

    def _named_line(self, error: Mapping[str, Any]) -> int:
        """The line that an error speaks of, or the learner's last line on the way to it."""
        named = re.search(rf"{re.escape(self.name)}:(\d+)", str(error["message"]))
        return int(named[1]) if named else int(error.get("line") or 0)

    def _renamed(self, name: str) -> str:
        """An exercise's own word for a common pitfall: `common = "missing-psum"` in its table."""
        own = getattr(self.exercise.task, "SAME", {})
        return own.get(name, name)

    def _noticed(self) -> tuple[str, str, int] | None:
        notice = getattr(self.exercise.task, "notice", None)
        if notice is None:
            return None
        for case, ran in zip(self.cases, self.ran, strict=True):
            facts = {**_facts(ran), "finished": not _error(ran), "source": self.source}
            try:
                found = notice(facts, dict(case.sizes), *case.args)
            except (KeyError, TypeError, ValueError, IndexError):
                return "tampered", "What the run was seen to do cannot be read.", 0
            if found:
                name, line = found if isinstance(found, tuple) else (found, 0)
                return name, "", int(line)
        return None

    def _lacking(self) -> str:
        pairs = list(zip(self.cases, self.ran, strict=True))
        several = [(c, r) for c, r in pairs if math.prod(c.sizes.values()) > 1] or pairs
        found = (
            diagnose.of_requirements(self.exercise, _facts(ran), case.sizes)
            for case, ran in several
        )
        return next((name for name in found if name), "")

    def _wrong(self, runs: tuple[Run, ...], name: str, reason: str, number: int) -> Judgement:
        pitfall = self.exercise.pitfall(name)
        refused = "replicated across mesh ax" in reason
        spread = any(_facts(ran).get("shard_maps") for ran in self.ran) or refused
        worth = self.judge.look and _worth_a_look(name) and (spread or self.exercise.form == "mesh")
        looked = self._look(runs, refused) if worth else None
        number = 0 if refused and looked else number
        line, on, held = number, "", ()
        if looked:
            # What comes back from a run is never trusted to have the form that we gave it.
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
                line, on, held = seen_at(looked, number)
        elif self.exercise.form == "shards":
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
                on, held = seen_in_loop(_facts(self.ran[1]), self.cases[1].sizes)
        return self._said(
            WRONG,
            runs,
            pitfall=pitfall,
            reason=reason,
            line=self._line(line),
            held_on=on,
            held=held,
            hint=pitfall.hint or (self.exercise.hints[0] if self.exercise.hints else ""),
        )

    def _look(self, runs: tuple[Run, ...], refused: bool) -> dict[str, Any] | None:
        """What the devices hold on the smallest mesh of several devices that is wrong.

        A program that JAX `refused`, because its results differ between the devices, is looked at
        with that check off: then there is something to see.
        """
        several = [
            (case, run)
            for case, run in zip(self.cases, runs, strict=True)
            if math.prod(case.sizes.values()) > 1
        ]
        wrong = [case for case, run in several if not run.ok] or [case for case, _ in several]
        if not wrong or self.exercise.form == "answer":
            return None
        job = {**_job(self.exercise, wrong[0].sizes, wrong[0].args, "look"), "unchecked": refused}
        (ran,) = self.judge.sandbox.run([job], self.source, self.name)
        self.cpu += ran.cpu
        return ran.data

    def _line(self, number: int) -> Line | None:
        lines = self.source.splitlines()
        return Line(number, lines[number - 1].strip()) if 0 < number <= len(lines) else None

    def _said(self, status: str, runs: tuple[Run, ...], **more: Any) -> Judgement:
        printed = next((one.printed for one in getattr(self, "ran", ()) if one.printed), "")
        return Judgement(
            exercise=self.exercise.name,
            title=self.exercise.title,
            file=self.file,
            status=status,
            runs=runs,
            printed=printed,
            cpu=getattr(self, "cpu", 0.0),
            **more,
        )


def _worth_a_look(name: str) -> bool:
    """Whether the values of the devices can explain it: a run that ended early has none."""
    return name not in {
        "not-started",
        "too-slow",
        "too-much-memory",
        "too-much-output",
        "ends-the-process",
        "refused",
        "tampered",
        "signature",
        "not-an-int",
        "no-wrt",
    }


def _error(ran: Ran) -> Mapping[str, Any]:
    error = (ran.data or {}).get("error")
    if not isinstance(error, dict):
        return {}
    return {"type": "Error", "message": "", **error}


def _facts(ran: Ran) -> Mapping[str, Any]:
    facts = (ran.data or {}).get("facts")
    return facts if isinstance(facts, dict) else {}


def _value(ran: Ran) -> Any:
    try:
        return wire.unpack((ran.data or {}).get("value"))
    except (ValueError, KeyError, TypeError):
        return None


def _shortened(text: str, most: int = 900) -> str:
    return text if len(text) <= most else text[:most] + " ..."

"""Plant bugs in the package, one at a time, and report which tests find them.

    python -m tests.mutants                        # 120 of them, on all cores but one
    python -m tests.mutants --count 100 --jobs 10 --minutes 9 --journal mutants.jsonl
    python -m tests.mutants --count 30 --area engine --jobs 2
    python -m tests.mutants --list                 # only say what would be planted

For each bug the tests that execute its line run, of each file the quickest, then the next one of
each, until one fails: first those of `make test`, for all bugs, then those forms of the same tests
that only `make test-every` runs, for the bugs that are left; each suite for at most `--seconds`.
Which tests execute a line is found out first, by one run of `make test` on Python 3.12, and kept in
`--reach`. Without that file the tests of its area run instead.

A test that finds a bug must pass without it: one that does not, as a missing package makes it, is
left out. A bug that neither suite finds may be one that changes nothing that can be seen, such as a
number that only makes a program slower.

The journal gets a line for each bug and suite, and the same command goes on from it. Needs pytest
and what shardwise needs; no network. Every process works in a copy of the checkout.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.copies import ROOT, Copies, environment

from . import reach
from .areas import AREAS
from .sites import Mutant, draw

SUITES = {
    "make test": "not cluster and not second and not rare",
    "make test-every": "rare and not cluster and not second",
}
NO_TESTS = 5
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", re.MULTILINE)

FOUND, MISSED, TIME_WAS_UP = "found", "missed", "the time was up"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one suite says of one bug."""

    mutant: str
    suite: str
    outcome: str
    test: str = ""
    seconds: float = 0.0


class Runner:
    """Runs tests in copies of the checkout, until the time is up."""

    def __init__(self, copies: Copies, seconds: float, ends: float):
        self.copies, self.seconds, self.ends = copies, seconds, ends
        self.lock = threading.Lock()
        self.sound: dict[str, bool] = {}
        self.collected: set[tuple[str, ...]] = set()

    def run(
        self, copy: Path, tests: Sequence[str], suite: str | None, seconds: float, *args: str
    ) -> tuple[int | None, str]:
        """Run tests of a copy; the exit status, None where the time was up, and what it printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-x", "--tb=line", "-rfE", *args]
        if suite and not any("[" in test for test in tests):  # which forms run depends on all forms
            command += ["-m", SUITES[suite]]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            process = subprocess.Popen(
                [*command, *tests],
                cwd=copy,
                env=environment(copy, OMP_NUM_THREADS="1"),
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                status = process.wait(max(0.0, min(seconds, self.ends - time.monotonic())))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = None
            out.seek(0)
            return status, out.read()

    def passes(self, copy: Path, test: str) -> bool:
        """Whether a test passes without a bug."""
        if test not in self.sound:
            status, _ = self.run(copy, [test], None, float("inf"))
            if status is None:
                return False
            with self.lock:
                self.sound[test] = status == 0
        return self.sound[test]

    def refuse_unusable(self, copy: Path, files: Sequence[str], suite: str) -> None:
        """Raise if the tests cannot even be collected without a bug: then nothing is measured."""
        with self.lock:
            if (suite, *files) in self.collected:
                return
        status, shown = self.run(copy, files, suite, float("inf"), "--collect-only")
        if status not in (None, 0, NO_TESTS):
            raise SystemExit(f"Without any bug pytest ends with exit status {status}:\n{shown}")
        with self.lock:
            self.collected.add((suite, *files))

    def unsound(self) -> list[str]:
        """Return the tests that fail without a bug."""
        with self.lock:
            return [test for test, sound in self.sound.items() if not sound]

    def judge(self, mutant: Mutant, suite: str, files: Sequence[str], number: int) -> Outcome:
        """Plant a bug and run the tests of its area until one finds it."""
        copy, began = self.copies.take(), time.monotonic()
        path = copy / mutant.file
        source = path.read_bytes()

        def write(text: bytes, seconds: float) -> None:
            # Python compiles again what has other seconds or another size.
            path.write_bytes(text)
            os.utime(path, (seconds + number, seconds + number))

        outcome, test = MISSED, ""
        while True:
            unsound = self.unsound()
            # A file that cannot be imported has no tests to deselect.
            left_out = [f"--{'deselect' if '::' in name else 'ignore'}={name}" for name in unsound]
            write(mutant.planted(source), 2.0e9)
            left = self.seconds - (time.monotonic() - began)
            status, shown = self.run(copy, files, suite, left, *left_out)
            write(source, 2.1e9)
            if status is None:
                outcome = TIME_WAS_UP
            elif status not in (0, NO_TESTS):
                found = FAILED.search(shown)
                outcome, test = FOUND, found[1] if found else f"exit status {status}"
                if not found:  # a bug that prevents an import, or an environment without pytest
                    self.refuse_unusable(copy, files, suite)
                if found and not self.passes(copy, test):
                    outcome = TIME_WAS_UP
                    if test in set(self.unsound()) - set(unsound):
                        continue
            break
        self.copies.give_back(copy)
        return Outcome(str(mutant), suite, outcome, test, round(time.monotonic() - began, 1))


def report(planned: Sequence[tuple[str, Mutant]], outcomes: Sequence[Outcome]) -> str:
    """Return how many bugs each suite finds, by area, and those that none finds."""
    known = {(each.mutant, each.suite): each for each in outcomes}
    short, rare = SUITES

    def judged(mutant: Mutant, suite: str) -> str:
        return known[str(mutant), suite].outcome if (str(mutant), suite) in known else "not tried"

    lines = ["| planted in | bugs | found by make test | by make test-every |", "|---|---|---|---|"]
    for name in [*AREAS, "all"]:
        group = [mutant for area, mutant in planned if name in (area, "all")]
        by_test = sum(judged(mutant, short) == FOUND for mutant in group)
        by_both = sum(FOUND in (judged(mutant, short), judged(mutant, rare)) for mutant in group)
        if group:
            lines.append(f"| {name} | {len(group)} | {by_test} | {by_both} |")
    alone, neither = ["", "Found only by make test-every:"], ["", "Found by neither:"]
    for _, mutant in planned:
        if judged(mutant, short) == FOUND:
            continue
        if judged(mutant, rare) == FOUND:
            alone.append(f"  {mutant} ({known[str(mutant), rare].test})")
        else:
            said = f"make test: {judged(mutant, short)}; the rest: {judged(mutant, rare)}"
            neither.append(f"  {mutant} ({said})")
    return "\n".join([*lines, *alone, *neither])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=120, help="bugs to plant (120)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (0)")
    parser.add_argument("--area", choices=AREAS, nargs="+", default=list(AREAS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=60, help="for each suite and bug (60)")
    parser.add_argument("--minutes", type=float, default=600, help="for all of it (600)")
    parser.add_argument("--list", action="store_true", help="say what would be planted")
    parser.add_argument("--journal", type=Path, help="a line for each bug and suite")
    parser.add_argument("--reach", type=Path, help="which tests execute the lines; found out once")
    asked = parser.parse_args()
    total = sum(AREAS[name].share for name in asked.area)
    counts = {name: round(asked.count * AREAS[name].share / total) for name in asked.area}
    planned = [
        (name, mutant)
        for name, count in counts.items()
        for mutant in draw(ROOT, AREAS[name].files(ROOT), count, asked.seed)
    ]
    if asked.list:
        for name, mutant in planned:
            print(f"{name}: {mutant}")
        return
    outcomes: list[Outcome] = []
    if asked.journal and asked.journal.exists():
        lines = asked.journal.read_text(encoding="utf-8").splitlines()
        outcomes += [Outcome(**json.loads(line)) for line in lines]

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(f"{outcome.outcome}: {outcome.mutant} [{outcome.suite}, {outcome.test}, "
              f"{outcome.seconds:.0f} s]", flush=True)  # fmt: skip
        if asked.journal:
            with open(asked.journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")

    ends = time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="shardwise-mutants-") as folder:
        tests = Runner(Copies(Path(folder)), asked.seconds, ends)
        reached = find_reach([mutant for _, mutant in planned], asked.reach, asked.jobs)
        for suite in SUITES:
            judge_all(planned, suite, tests, reached, outcomes, asked.jobs, keep)
    print(report(planned, outcomes))
    for test in tests.unsound():
        print(f"Fails without a bug, and was left out: {test}")


def find_reach(mutants: Sequence[Mutant], file: Path | None, jobs: int) -> dict[str, list[str]]:
    """Return the tests that execute each line where a bug is planted, the quickest first."""
    if file is None or not reach.USABLE:
        return {}
    if not file.exists():
        print("One run of make test, to see which tests execute the lines", flush=True)
        lines = json.dumps([f"{mutant.file}:{mutant.line}" for mutant in mutants])
        unfinished = file.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-m", SUITES["make test"], "--tb=line"]
        command += ["-n", str(jobs), "-p", "no:cacheprovider", "-p", "tests.mutants.reach"]
        variables = {reach.FILE: str(unfinished.absolute()), reach.LINES: lines}
        subprocess.run(command, cwd=ROOT, env=environment(ROOT, **variables), check=False)
        unfinished.rename(file)
    return reach.read(file)


def tests_of(mutant: Mutant, area: str, suite: str, reached: dict[str, list[str]]) -> list[str]:
    """Return what should find a bug: names of tests, or files."""
    if not reached:
        return AREAS[area].test_files(ROOT)
    found = reached.get(f"{mutant.file}:{mutant.line}", reached[reach.ANY])
    if suite == "make test":
        return found
    return list(dict.fromkeys(test.partition("[")[0] for test in found))


def judge_all(
    planned: Sequence[tuple[str, Mutant]],
    suite: str,
    tests: Runner,
    reached: dict[str, list[str]],
    outcomes: Sequence[Outcome],
    jobs: int,
    keep: Callable[[Outcome], None],
) -> None:
    """Let one suite judge all bugs that neither it nor an earlier suite has judged."""
    done = {each.mutant for each in outcomes if each.suite == suite or each.outcome == FOUND}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(tests.judge, mutant, suite, tests_of(mutant, area, suite, reached), number)
            for number, (area, mutant) in enumerate(planned)
            if str(mutant) not in done
        ]
        try:
            for each in concurrent.futures.as_completed(waiting):
                keep(each.result())
                if time.monotonic() > tests.ends:
                    break
        finally:
            for other in waiting:
                other.cancel()


if __name__ == "__main__":
    main()

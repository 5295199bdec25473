"""Plant bugs in the package, one at a time, and report which tests find them.

    python -m tests.mutants                        # 120 of them, on all cores but one
    python -m tests.mutants --count 30 --area engine --jobs 2
    python -m tests.mutants --list                 # only say what would be planted

For each bug the tests of its area run until one fails: first those of `make test`, then those that
only `make test-all` runs, the quickest file first, each suite for at most `--seconds`. A bug that
neither finds may be one that changes nothing that can be seen, such as a number that only makes a
program slower. Tests that fail without any bug, as a missing package makes them, are found first
and left out. Needs pytest and what shardwise needs; no network. Every process works in a copy of
the checkout.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .areas import AREAS
from .sites import Mutant, draw

ROOT = Path(__file__).parents[2]
SUITES = {
    "make test": "not cluster and not second and not rare",
    "make test-all": "rare and not cluster and not second",
}
LEFT_OUT = shutil.ignore_patterns(".venv*", ".git", "__pycache__", "site", "dist", ".fuzz")
NO_TESTS = 5
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclasses.dataclass
class Measured:
    """The tests of one file in one suite: what fails without a bug, and how long they take."""

    file: str
    suite: str
    failing: list[str]
    seconds: float
    usable: bool


class Copies:
    """Copies of the checkout, one for each process, made when they are first needed."""

    def __init__(self, folder: Path):
        self.folder, self.free, self.made = folder, queue.SimpleQueue(), 0

    def take(self) -> Path:
        try:
            return self.free.get_nowait()
        except queue.Empty:
            self.made += 1
            copy = self.folder / f"copy{self.made}"
            shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
            return copy


def run_tests(
    copy: Path, tests: list[str], suite: str, left_out: list[str], limit: float, stop: bool
) -> tuple[int | None, str]:
    """Run tests of a copy; the exit status, None where the time was up, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SUITES[suite]]
    command += [*(["-x"] if stop else []), "--tb=line", "-rfE"]
    command += [f"--deselect={name}" for name in left_out]
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [*command, *tests], cwd=copy, env=env, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = None
        out.seek(0)
        return code, out.read()


def baseline(copies: Copies, file: str, suite: str, limit: float) -> Measured:
    """Run the tests of a file without a bug."""
    copy = copies.take()
    began = time.monotonic()
    code, shown = run_tests(copy, [file], suite, [], limit, stop=False)
    copies.free.put(copy)
    failing = FAILED.findall(shown)
    usable = code in (0, 1, NO_TESTS) and file not in failing
    return Measured(file, suite, failing, time.monotonic() - began, usable)


@dataclasses.dataclass
class Result:
    """What found a bug."""

    mutant: Mutant
    area: str
    suite: str | None = None
    test: str = ""
    seconds: float = 0.0


def judge(
    copies: Copies, mutant: Mutant, area: str, tests: list[Measured], budget: float, number: int
) -> Result:
    """Plant a bug and run the tests of its area, suite by suite, until one finds it."""
    copy, result, began = copies.take(), Result(mutant, area), time.monotonic()
    path = copy / mutant.file
    source = path.read_bytes()
    try:
        path.write_bytes(mutant.planted(source))
        # Python looks at seconds and size to see whether what it compiled before is out of date.
        os.utime(path, (2e9 + number, 2e9 + number))
        for suite in SUITES:
            used = [each for each in tests if each.suite == suite]
            left_out = [name for each in used for name in each.failing]
            if not used:
                continue
            files = [each.file for each in used]
            code, shown = run_tests(copy, files, suite, left_out, budget, stop=True)
            if code is None:
                result.test = "the time was up"
            elif code not in (0, NO_TESTS):
                found = FAILED.search(shown)
                result.suite, result.test = suite, found[1] if found else f"exit status {code}"
                break
    finally:
        path.write_bytes(source)
        os.utime(path, (2.1e9 + number, 2.1e9 + number))
        copies.free.put(copy)
    result.seconds = time.monotonic() - began
    return result


def chosen(tests: list[Measured], files: list[str]) -> list[Measured]:
    """Return the tests of these files that pass without a bug, the quickest ones first."""
    usable = [each for each in tests if each.usable and each.file in files]
    return sorted(usable, key=lambda each: each.seconds)


def report(results: list[Result]) -> str:
    """Return how many bugs each suite finds, by area and kind, and those that none finds."""
    lines = ["| planted in | bugs | found by make test | by make test-all |", "|---|---|---|---|"]
    groups = {name: [r for r in results if r.area == name] for name in AREAS}
    groups |= {"all": results}
    for name, group in groups.items():
        short = sum(r.suite == "make test" for r in group)
        both = sum(r.suite is not None for r in group)
        if group:
            lines.append(f"| {name} | {len(group)} | {short} | {both} |")
    lines += ["", "Found only by make test-all:"]
    lines += [f"  {r.mutant} ({r.test})" for r in results if r.suite == "make test-all"]
    lines += ["", "Found by none of the tests of the area:"]
    lines += [f"  {r.mutant}" for r in results if r.suite is None]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=120, help="bugs to plant (120)")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (0)")
    parser.add_argument("--area", choices=AREAS, nargs="+", default=list(AREAS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=60, help="for each suite and bug (60)")
    parser.add_argument("--list", action="store_true", help="say what would be planted")
    parser.add_argument("--json", type=Path, help="write the results here too")
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
    with tempfile.TemporaryDirectory(prefix="shardwise-mutants-") as folder:
        results = run(planned, Copies(Path(folder)), asked.jobs, asked.seconds)
    print(report(results))
    if asked.json:
        asked.json.write_text(json.dumps([dataclasses.asdict(r) for r in results], indent=1))


def run(
    planned: list[tuple[str, Mutant]], copies: Copies, jobs: int, budget: float
) -> list[Result]:
    """Find out what passes without a bug, then plant them all."""
    files = {name: AREAS[name].test_files(ROOT) for name, _ in planned}
    every = sorted({file for found in files.values() for file in found})
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        known = [
            pool.submit(baseline, copies, file, suite, 2 * budget)
            for file in every
            for suite in SUITES
        ]
        tests = [each.result() for each in known]
        for each in tests:
            if each.failing or not each.usable:
                what = f"{len(each.failing)} tests are" if each.usable else "it is"
                print(f"{each.file} ({each.suite}): {what} left out", flush=True)
        waiting = [
            pool.submit(judge, copies, mutant, name, chosen(tests, files[name]), budget, number)
            for number, (name, mutant) in enumerate(planned)
        ]
        results = []
        for done in concurrent.futures.as_completed(waiting):
            result = done.result()
            results.append(result)
            verdict = f"found by {result.suite}" if result.suite else "NOT FOUND"
            print(f"{verdict}: {result.mutant} [{result.test}, {result.seconds:.0f} s]", flush=True)
    return results


if __name__ == "__main__":
    main()

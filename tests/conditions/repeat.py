"""Every test that starts a process, a timer or a limit, many times; what ran is kept."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.copies import ROOT, Copies, environment

from . import record
from .processes import adopt_orphans, end_all, send

LONG_ENOUGH = 30.0
"""Seconds of tests that are worth a process of their own: files that take less share one."""

MARKS = "not cluster and not second and not rare"


def all_files() -> list[str]:
    """Return the files of tests."""
    return [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests").rglob("test_*.py"))]


class Runs:
    """Of each test that starts something, or failed: its runs, its failures, its seconds."""

    def __init__(self, lines: Iterable[dict]):
        self.runs, self.failed, self.seconds = Counter(), Counter(), defaultdict(float)
        lines = [line for line in lines if "test" in line and line["outcome"] != "skipped"]
        self.files = {line["test"].partition("::")[0] for line in lines}
        """The files that ran."""
        counted = (line for line in lines if record.STARTS in line or line["outcome"] == "failed")
        starting = {line["test"] for line in counted}
        for line in lines:
            if line["test"] in starting:
                self.runs[line["test"]] += 1
                self.failed[line["test"]] += line["outcome"] == "failed"
                self.seconds[line["test"]] += line["seconds"]

    def of_file(self, file: str) -> list[str]:
        """Return the tests of a file that start something."""
        return [test for test in self.runs if test.partition("::")[0] == file]

    def rounds(self, file: str) -> int:
        """Return how often all of these tests of a file ran."""
        return min((self.runs[test] for test in self.of_file(file)), default=0)

    def length(self, file: str) -> float:
        """Return how long one round of them takes."""
        return sum(self.seconds[test] / self.runs[test] for test in self.of_file(file))

    def __str__(self) -> str:
        runs, failed = self.runs.total(), self.failed.total()
        return f"{runs} runs of {len(self.runs)} tests, {failed} failures"

    def table(self) -> str:
        """Return the runs and failures by file, and the tests that failed."""
        files = defaultdict(list)
        for test in self.runs:
            files[test.partition("::")[0]].append(test)
        lines = ["| file | tests | runs of each | runs | failures |", "|---|---|---|---|---|"]
        for file, tests in sorted(files.items()):
            runs = [self.runs[test] for test in tests]
            each = str(min(runs)) if min(runs) == max(runs) else f"{min(runs)} to {max(runs)}"
            failed = sum(self.failed[test] for test in tests)
            lines.append(f"| {file} | {len(tests)} | {each} | {sum(runs)} | {failed} |")
        lines.append(
            f"| all | {len(self.runs)} | {min(self.runs.values(), default=0)} or more "
            f"| {self.runs.total()} | {self.failed.total()} |"
        )
        lines += [
            f"failed {count} of {self.runs[test]} times: {test}"
            for test, count in self.failed.most_common()
            if count
        ]
        return "\n".join(lines)


def batches(files: Mapping[str, int], lengths: Mapping[str, float]) -> Iterator[list[str]]:
    """Yield files that one process runs, for as many rounds as each of them lacks."""
    for number in range(max(files.values(), default=0)):
        batch, length = [], 0.0
        for file in sorted(files, key=lambda file: -lengths[file]):
            if files[file] > number:
                batch.append(file)
                length += lengths[file]
                if length >= LONG_ENOUGH:
                    yield batch
                    batch, length = [], 0.0
        if batch:
            yield batch


def run_batch(copies: Copies, tests: Sequence[str], journal: Path, ends: float) -> str | None:
    """Run some tests once; return what was printed where something else than a test failed."""
    if time.monotonic() > ends:
        return None
    copy = copies.take()
    command = [sys.executable, "-m", "pytest", "-m", MARKS, "-q", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "tests.conditions.record"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=copy,
            env=environment(copy, **{record.FILE: str(journal.absolute())}),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            status = process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            send([process.pid], 9)
            return None
        out.seek(0)
        copies.give_back(copy)
        no_tests = 5
        return None if status in (0, 1, no_tests) else out.read()[-3000:]


def repeat(files: Sequence[str], times: int, jobs: int, seconds: float, journal: Path) -> bool:
    """Run the tests of files that start something so often; return whether all passed.

    The first run of all tests shows which do. The journal counts: what an earlier call ran is not
    run again.
    """
    adopt_orphans()
    began, ends = time.monotonic(), time.monotonic() + seconds

    def run(what: str, groups: Sequence[Sequence[str]]) -> None:
        print(f"{what}: {len(groups)} processes", flush=True)
        done = [pool.submit(run_batch, copies, tests, journal, ends) for tests in groups]
        for number, each in enumerate(concurrent.futures.as_completed(done), 1):
            if problem := each.result():
                print(problem, flush=True)
            if time.monotonic() < ends and number % jobs == 0:
                known, now = Runs(record.read(journal)), time.monotonic() - began
                print(f"{now:.0f} s: {number} of {len(done)}; {known}", flush=True)

    with (
        tempfile.TemporaryDirectory(prefix="shardwise-conditions-") as folder,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        copies = Copies(Path(folder))
        known = Runs(record.read(journal))
        unknown = [file for file in files if file not in known.files]
        groups = [unknown[k :: 4 * jobs] for k in range(4 * jobs)]
        run("all tests once, to see which start something", [group for group in groups if group])
        known = Runs(record.read(journal))
        missing = {file: times - known.rounds(file) for file in files if known.of_file(file)}
        lengths = {file: known.length(file) for file in missing}
        tests = {file: {name.partition("[")[0] for name in known.of_file(file)} for file in missing}
        run(
            f"{times} times those that do",
            [
                sorted(name for file in batch for name in tests[file])
                for batch in batches(missing, lengths)
            ],
        )
        end_all(os.getpid())
    known = Runs(record.read(journal))
    print(known.table())
    if time.monotonic() > ends:
        print(f"The time was up. The same command goes on from {journal}.")
    return not known.failed.total()

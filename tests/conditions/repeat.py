"""Every test that starts a process, a timer or a limit, many times; what ran is kept."""

from __future__ import annotations

import concurrent.futures
import os
import re
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

STARTS = re.compile(
    r"subprocess|apart\.|multiprocessing|threading|signal\.|time\.sleep|monotonic|launch\(|HANGS|"
    r"\bjudge\b|Judge\(|Limits\(|ThreadPool|forkserver|socket|Workshop|watch|alarm|notebook"
)
"""What a file has that starts a process, a timer or a limit."""

LONG_ENOUGH = 30.0
"""Seconds of tests that are worth a process of their own: files that take less share one."""

MARKS = "not cluster and not second and not rare"


def starting() -> list[str]:
    """Return the files of tests that start a process, a timer or a limit."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        str(file.relative_to(ROOT))
        for file in files
        if STARTS.search(file.read_text(encoding="utf-8"))
    ]


class Runs:
    """What is known of each test: its runs, its failures, its seconds."""

    def __init__(self, lines: Iterable[dict]):
        self.runs, self.failed, self.seconds = Counter(), Counter(), defaultdict(float)
        for line in lines:
            if "test" in line and line["outcome"] != "skipped":
                self.runs[line["test"]] += 1
                self.failed[line["test"]] += line["outcome"] == "failed"
                self.seconds[line["test"]] += line["seconds"]

    def of_file(self, file: str) -> list[str]:
        """Return the tests of a file."""
        return [test for test in self.runs if test.partition("::")[0] == file]

    def rounds(self, file: str) -> int:
        """Return how often all tests of a file ran."""
        return min((self.runs[test] for test in self.of_file(file)), default=0)

    def length(self, file: str) -> float:
        """Return how long one round of a file takes; infinite if it never ran."""
        tests = self.of_file(file)
        if not tests:
            return float("inf")
        return sum(self.seconds[test] / self.runs[test] for test in tests)

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


def run_batch(copies: Copies, files: Sequence[str], journal: Path, ends: float) -> str | None:
    """Run some files once; return what was printed where something else than a test failed."""
    if time.monotonic() > ends:
        return None
    copy = copies.take()
    command = [sys.executable, "-m", "pytest", "-m", MARKS, "-q", "--tb=short"]
    command += ["-p", "no:cacheprovider", "-p", "tests.conditions.record"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(
            [*command, *files],
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
    """Run files until every test of them ran so often; return whether all passed.

    The journal counts: what an earlier call ran is not run again.
    """
    adopt_orphans()
    began, ends = time.monotonic(), time.monotonic() + seconds
    with (
        tempfile.TemporaryDirectory(prefix="shardwise-conditions-") as folder,
        concurrent.futures.ThreadPoolExecutor(jobs) as pool,
    ):
        copies = Copies(Path(folder))
        # The first round says how long each file takes.
        for goal in dict.fromkeys((1, times)):
            known = Runs(record.read(journal))
            lengths = {file: known.length(file) for file in files}
            missing = {file: goal - known.rounds(file) for file in files}
            done = [
                pool.submit(run_batch, copies, batch, journal, ends)
                for batch in batches(missing, lengths)
            ]
            print(f"{goal} of each: {len(done)} runs of some files", flush=True)
            for number, each in enumerate(concurrent.futures.as_completed(done), 1):
                if problem := each.result():
                    print(problem, flush=True)
                if number % jobs == 0 or number == len(done):
                    known = Runs(record.read(journal))
                    print(
                        f"{time.monotonic() - began:.0f} s: {number} of {len(done)}; "
                        f"{known.runs.total()} runs of {len(known.runs)} tests, "
                        f"{known.failed.total()} failures",
                        flush=True,
                    )
        end_all(os.getpid())
    known = Runs(record.read(journal))
    print(known.table())
    if time.monotonic() > ends:
        print(f"The time was up. The same command goes on from {journal}.")
    return not known.failed.total()

"""Run random programs: `python -m tests.fuzz --count 5000 --seed 0 --workers 2`.

Program 17 of a seed is always the same; `--only 17` prints it and runs it alone. With `--tally` the
outcome is kept in a file, and the same command goes on with the programs that come next. At the
end, one failing program of each kind is made smaller and printed as a script.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from . import tally
from .campaign import reports, stretch
from .programs import make

SHRUNK = 6
"""How many failing programs are made smaller at most."""


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 0 when no program failed."""
    options = _parser().parse_args(argv)
    if options.worker:
        from .worker import work

        groups = [list(map(int, group.split(","))) for group in options.numbers.split(";")]
        return work(options.seed, groups, options.shrink)
    if options.table:
        print(tally.table([run for path in options.table for run in tally.read(path)]))
        return 0
    run = tally.resume(options.tally, importlib.metadata.version("jax"), options.seed)
    numbers = list(_numbers(options, run))
    done, before = len(run.done), run.seconds
    failed = _campaign(options, run, numbers)
    _summary(run, len(run.done) - done, run.seconds - before)
    if failed and not options.no_shrink:
        _shrink(options.seed, failed)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many more programs")
    parser.add_argument("--seed", type=int, default=0, help="which programs")
    parser.add_argument("--start", type=int, default=0, help="the number of the first program")
    parser.add_argument("--only", type=int, help="run this program alone, and print it")
    parser.add_argument("--failed", action="store_true", help="run those again that failed")
    parser.add_argument("--feature", action="append", help="only programs that have this feature")
    parser.add_argument("--without", action="append", help="no programs that have this feature")
    parser.add_argument("--seconds", type=float, help="stop after this time, wherever it is")
    parser.add_argument("--workers", type=int, default=1, help="how many processes")
    parser.add_argument("--tally", type=Path, help="the file that keeps what came of them")
    parser.add_argument("--table", type=Path, nargs="+", help="print tallies, added up")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing programs as drawn")
    for hidden in ("--worker", "--shrink"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", help=argparse.SUPPRESS)
    return parser


def _numbers(options: argparse.Namespace, run: tally.Run) -> Iterator[int]:
    """The programs to run."""
    if options.only is not None:
        print(make(options.seed, options.only).script())
        yield options.only
    elif options.failed:
        yield from sorted(run.failed)
    else:
        new = (n for n in itertools.count(options.start) if n not in run.done)
        yield from itertools.islice(filter(lambda n: _wanted(options, n), new), options.count)


def _wanted(options: argparse.Namespace, number: int) -> bool:
    if not (options.feature or options.without):
        return True
    features = make(options.seed, number).features
    wanted, unwanted = set(options.feature or ()), set(options.without or ())
    return wanted <= features and not unwanted & features


def _campaign(options: argparse.Namespace, run: tally.Run, numbers: list[int]) -> dict[int, str]:
    """Run the programs, showing and saving where it stands. Those that failed, and why."""
    failed: dict[int, str] = {}
    began = shown = time.monotonic()
    before = run.seconds

    def keep() -> None:
        run.seconds = before + time.monotonic() - began
        if options.tally:
            tally.save(options.tally, run)

    told = reports(options.seed, numbers, options.workers)
    for count, report in enumerate(told, 1):
        run.add(report)
        if report["kind"] == "wrong":
            failed[report["number"]] = report["why"]
            print(f"program {report['number']} of seed {options.seed}: {report['why']}", flush=True)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            keep()
            rate = count / (shown - began)
            print(f"{run.line}; {count} of {len(numbers)}, {rate:.2f} per second", flush=True)
        if options.seconds and time.monotonic() - began > options.seconds:
            break
    told.close()
    keep()
    return failed


def _summary(run: tally.Run, count: int, seconds: float) -> None:
    rate = count / max(seconds, 1e-9)
    print(f"\n{count} in {seconds:.0f} s, {rate:.2f} per second. In all: {run.line}")
    for number, why in sorted(run.failed.items()):
        print(f"failed {number}: {tally.first_line(why)}")
    for why, times in run.refusals.most_common(8):
        print(f"refused {times}: {why}")
    print(f"{len(run.features)} features covered:")
    for feature, times in sorted(run.features.items()):
        print(f"  {feature}: {times}")


def _shrink(seed: int, failed: dict[int, str]) -> None:
    """Print one small program for each kind of failure."""
    kinds = {tally.first_line(why): number for number, why in sorted(failed.items(), reverse=True)}
    for number in list(kinds.values())[:SHRUNK]:
        for report in stretch(seed, [number], shrink=True):
            if report.get("script"):
                print(f"\nprogram {number} of seed {seed}, smaller: {report['why']}\n")
                print(report["script"], flush=True)


if __name__ == "__main__":
    sys.exit(main())

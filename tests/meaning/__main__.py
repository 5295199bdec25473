"""Random programs, read and run: `python -m tests.meaning --count 5000 --seed 1 --tally FILE`.

Each program is proved (or not) against itself on one device, and run on real virtual devices. What
is proved has to be the same in numbers, and every value that has a meaning has to be what the
devices hold. `--kind results` compares the results only and is ten times as quick, `--kind fuzz`
takes the programs of `tests.fuzz`. `--kind rules` attacks each rule in each dtype (`attack`) and
compares every value of small programs for it; it reports the attempts and fails for a rule without
one (4,000 programs try every rule in every dtype). Programs run in worker processes, a hundred in
each. If one dies, its error is reported and the programs after that one run in a new process. The
tally is JSON; with the same tally, the same command continues where it ended.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..devices import request_devices
from ..fuzz.flags import environment

PER_WORKER = 100
PATIENCE = 300.0
"""The seconds after which a program counts as one that hangs."""


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 0 when nothing that is said is wrong."""
    options = _parser().parse_args(argv)
    if options.worker:
        return _work(options)
    started = shown = time.monotonic()
    until = started + options.seconds
    held = _read(options)
    total, failures = Counter(held["counts"]), list(held["failures"])
    stop = options.start + options.count
    options.start, started = max(options.start, held["next"]), started - held["seconds"]
    environment()  # cached before the threads ask for it
    chunks = [(n, min(PER_WORKER, stop - n)) for n in range(options.start, stop, PER_WORKER)]
    with ThreadPoolExecutor(options.workers) as pool:
        told = pool.map(lambda chunk: _chunk(options, *chunk, until), chunks)
        for (start, count), found in zip(chunks, told, strict=True):
            if found is None:
                break
            total.update(found["counts"])
            failures += found["failures"]
            for one in found["failures"]:
                print(one, flush=True)
            if options.tally:
                seconds = time.monotonic() - started
                _write(options, start + count, total, failures, seconds)
            if time.monotonic() - shown > 30:
                shown = time.monotonic()
                print(f"{dict(total)}, {shown - started:.0f} s", flush=True)
    if options.kind == "rules":
        failures += _attempts(total)
    print(json.dumps(total, indent=2, sort_keys=True))
    print(f"{len(failures)} failures, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


def _attempts(total: Counter) -> list[str]:
    """Print the attempts per rule and dtype, taken out of the tally; the rules without any."""
    found: dict[str, list[str]] = {}
    for key in [key for key in total if key.startswith("rule ")]:
        name, dtype = key.removeprefix("rule ").split(", ")
        if count := total.pop(key):
            found.setdefault(name, []).append(f"{dtype} {count}")
    request_devices()
    from .attack import FORMS

    for name in sorted(FORMS):
        print(f"{name}: {', '.join(sorted(found.get(name, []))) or 'no attempt'}")
    return [f"{name}: no attempt" for name in sorted(FORMS) if name not in found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.meaning", description=__doc__)
    parser.add_argument("--kind", choices=["random", "results", "fuzz", "rules"], default="random")
    parser.add_argument("--count", type=int, default=500, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="which programs")
    parser.add_argument("--start", type=int, default=0, help="the number of the first program")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no programs after that")
    parser.add_argument("--tally", help="a file for the counts, as JSON, kept up to date")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _read(options: argparse.Namespace) -> dict[str, Any]:
    """What a tally of the same programs holds."""
    new = {"counts": {}, "failures": [], "next": 0, "seconds": 0}
    if not options.tally or not os.path.exists(options.tally):
        return new
    with open(options.tally) as file:
        held = json.load(file)
    own = (options.kind, options.seed)
    if (held["kind"], held["seed"]) != own or "next" not in held:
        raise SystemExit(f"{options.tally} is of other programs than {own}: name another file")
    return held


def _write(
    options: argparse.Namespace, after: int, total: Counter, failures: list[str], seconds: float
) -> None:
    found = {
        "kind": options.kind,
        "seed": options.seed,
        "next": after,
        "counts": dict(sorted(total.items())),
        "failures": failures,
        "seconds": round(seconds),
    }
    with open(options.tally, "w") as file:
        json.dump(found, file, indent=2)


def _chunk(
    options: argparse.Namespace, start: int, count: int, until: float
) -> dict[str, Any] | None:
    """Run programs in a worker process, and in another one after each program that ends it."""
    if time.monotonic() > until:
        return None
    counts: Counter = Counter()
    failures: list[str] = []
    stop = start + count
    while start < stop:
        command = [sys.executable, "-m", "tests.meaning", "--worker", "--kind", options.kind]
        command += ["--seed", str(options.seed), "--start", str(start)]
        command += ["--count", str(stop - start)]
        process = subprocess.run(command, env=environment(), capture_output=True, text=True)
        reports = [json.loads(line) for line in process.stdout.splitlines() if line[:1] == "{"]
        if not reports:
            raise SystemExit(f"a worker does not start:\n{process.stderr}")
        for report in reports[1:]:
            counts.update(report["counts"])
            failures += [f"{options.kind} {report['number']}: {why}" for why in report["failures"]]
        start += len(reports) - 1
        if start < stop:
            counts["workers that died"] += 1
            last = process.stderr[-2000:]
            failures.append(f"{options.kind} {start}: the worker died or hung:\n{last}")
            start += 1
    return {"counts": counts, "failures": failures}


def _work(options: argparse.Namespace) -> int:
    request_devices()
    import jax

    from . import campaign

    print(json.dumps({"jax": jax.__version__}), flush=True)
    for number in range(options.start, options.start + options.count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            counts, failures = campaign.KINDS[options.kind](options.seed, number)
        except Exception:
            counts, failures = {}, [traceback.format_exc()]
        report = {"number": number, "counts": counts, "failures": failures}
        print(json.dumps(report), flush=True)
        if number % 20 == 19:
            jax.clear_caches()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

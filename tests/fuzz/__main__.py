"""Run random programs: `python -m tests.fuzz --count 5000 --seed 0`.

Programs run in worker processes of a few hundred each: memory does not grow, and a program that
takes XLA down with it takes one worker, not the run. A failing program is made smaller and printed
as a script. Program 17 of a seed is always the same; `--only 17` runs it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..devices import request_devices
from .draw import Seeded
from .generate import generate
from .language import Program

PER_WORKER = 150
SILENCE = 300.0
"""Seconds without a word after which a worker is given up."""


def make(seed: int, number: int) -> Program:
    """Every tenth program is one that has to be found to hang."""
    return generate(Seeded(f"{seed}:{number}"), hangs=number % 10 == 9)


@dataclass
class Tally:
    """What has come of the programs so far."""

    kinds: Counter = field(default_factory=Counter)
    features: Counter = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    refusals: Counter = field(default_factory=Counter)
    error: float = 0.0

    def add(self, seed: int, *, number: int, kind: str, why: str, error: float) -> None:
        self.kinds[kind] += 1
        if kind in ("right", "wrong"):
            self.features.update(make(seed, number).features)
        if kind == "right":
            self.error = max(self.error, error)
        if kind == "refused":
            self.refusals[why.splitlines()[0][:100] if why else ""] += 1
        if kind == "wrong":
            self.failed.append(number)

    @property
    def line(self) -> str:
        run = sum(self.kinds.values())
        return (
            f"{run} run, {self.kinds['refused']} discarded, {len(self.failed)} failed, "
            f"largest difference {self.error:.1e}"
        )


def main(argv: list[str] | None = None) -> int:
    """The command line. Returns 0 when no program failed."""
    options = _parser().parse_args(argv)
    if options.worker:
        return _work(options)
    if options.only is not None:
        options.start, options.count = options.only, 1
        print(make(options.seed, options.only).script())
    tally = Tally()
    started = shown = time.monotonic()
    for report in _reports(options):
        if "kind" in report:
            tally.add(options.seed, **{k: v for k, v in report.items() if k != "script"})
        if report.get("script"):
            print(f"\nprogram {report['number']} of seed {options.seed}: {report['why']}\n")
            print(report["script"], flush=True)
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{tally.line}, {shown - started:.0f} s", flush=True)
    _summary(tally, time.monotonic() - started)
    return 1 if tally.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="which programs")
    parser.add_argument("--start", type=int, default=0, help="the number of the first program")
    parser.add_argument("--only", type=int, help="run this program alone, and print it")
    parser.add_argument("--no-shrink", action="store_true", help="print failing programs as drawn")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


def _summary(tally: Tally, seconds: float) -> None:
    print(f"\n{tally.line}, {seconds:.0f} s")
    if tally.failed:
        print("failed:", ", ".join(map(str, tally.failed)))
    for why, times in tally.refusals.most_common(5):
        print(f"discarded {times}: {why}")
    print(f"{len(tally.features)} features covered:")
    for feature, times in sorted(tally.features.items()):
        print(f"  {feature}: {times}")


# --- the parent ---------------------------------------------------------------------------------


def _reports(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What the workers say, one after the other, and what is to be said of one that died."""
    number, stop = options.start, options.start + options.count
    while number < stop:
        last = min(number + PER_WORKER, stop)
        phase = "start"
        for report in _worker(options, number, last):
            phase = report.get("phase", phase)
            if "kind" in report:
                number, phase = report["number"] + 1, "between"
            yield report
        if number < last:
            yield _obituary(number, phase, options.seed)
            number += 1


def _obituary(number: int, phase: str, seed: int) -> dict[str, Any]:
    """XLA aborts or hangs on a few programs; if it does so for real, JAX has refused it."""
    kind = "refused" if phase == "real" else "wrong"
    why = f"the worker died or hung ({phase})"
    script = make(seed, number).script() if kind == "wrong" else ""
    return {"number": number, "kind": kind, "why": why, "error": 0.0, "script": script}


def _worker(options: argparse.Namespace, start: int, stop: int) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.fuzz", "--worker", "--seed", str(options.seed)]
    command += ["--start", str(start), "--count", str(stop - start)]
    command += ["--no-shrink"] if options.no_shrink else []
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, **quiet)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    try:
        while (line := lines.get(timeout=SILENCE)) is not None:
            yield json.loads(line)
    except queue.Empty:
        pass
    finally:
        process.kill()
        process.wait()


def _read(stream: Any, lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


# --- a worker -----------------------------------------------------------------------------------


def _work(options: argparse.Namespace) -> int:
    request_devices()
    # Whatever a program prints must not get between the reports.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**report: Any) -> None:
        out.write(json.dumps(report) + "\n")
        out.flush()

    import jax

    from . import trial

    with jax.numpy_dtype_promotion("strict"):
        for number in range(options.start, options.start + options.count):
            program = make(options.seed, number)
            outcome = trial.attempt(program, lambda phase: say(phase=phase))
            script = ""
            if outcome.kind == "wrong":
                script = (program if options.no_shrink else _smaller(program, outcome)).script()
            say(
                number=number,
                kind=outcome.kind,
                why=outcome.why,
                error=outcome.error,
                script=script,
            )
            if number % 50 == 49:
                jax.clear_caches()
    return 0


def _smaller(program: Program, outcome: Any) -> Program:
    from . import trial
    from .shrink import shrink

    # A program that fails with another exception is another failure; an exception of ours shows
    # without running anything for real.
    raised = outcome.why.split(":")[0] if "Error" in outcome.why.split(":")[0] else None

    def fails(candidate: Program) -> bool:
        if raised is None:
            return trial.attempt(candidate).kind == "wrong"
        return trial.attempt_simulated(candidate).why.startswith(raised)

    small = shrink(program, fails)
    return small if trial.attempt(small).kind == "wrong" else program


if __name__ == "__main__":
    raise SystemExit(main())

"""Compare simulating a mesh with other ways to run the same training step.

    make bench                                  # what the targets are about
    python benchmarks/simulate.py               # every form: five to ten minutes on two cores
    python benchmarks/simulate.py --rounds 9    # steadier

Every configuration runs in a separate process. Their steps are interleaved round by round, so
that a machine that is busy for a while is busy for all of them, and the median of the rounds is
printed. Memory is the peak of the process (`resident`) and XLA's own figure (`temporaries`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
from report import Target

HERE = Path(__file__).parent
COMPILED = (8, 64, 1024, 4096)


@dataclass(frozen=True)
class Config:
    """One way to run the step."""

    kind: str
    shards: int = 1
    at_once: int | str = 1
    width: int = 1024
    batch: int = 8192

    def __str__(self) -> str:
        names = {
            "unsharded": "unsharded",
            "accumulated": f"scan by hand, {self.shards} slices",
            "vmap": f"vmap(axis_name), {self.shards} shards",
            "native": f"native, {self.shards} virtual devices",
            "simulated": f"simulated, {self.shards} shards, at_once={self.at_once}",
        }
        return names[self.kind]


UNSHARDED = Config("unsharded")
NATIVE = Config("native", 64)
ONE = Config("simulated", 64, 1)
AUTO = Config("simulated", 64, "auto")
AUTO_OF_EIGHT = Config("simulated", 8, "auto")
BY_HAND = Config("accumulated", 64)
WIDE = (
    UNSHARDED,
    AUTO,
    ONE,
    AUTO_OF_EIGHT,
    Config("simulated", 8, 1),
    BY_HAND,
    Config("vmap", 8),
    Config("vmap", 64),
    Config("native", 8),
    NATIVE,
)
# 256 virtual devices hold 256 copies of the params, several times over: a smaller model, in rows
# of its own.
NARROW = tuple(
    Config(kind, shards, at_once, width=512)
    for kind, shards, at_once in (
        ("unsharded", 1, 1),
        ("simulated", 256, "auto"),
        ("simulated", 256, 1),
        ("native", 256, 1),
    )
)
# The forms that the targets are about.
BARE = ((UNSHARDED, AUTO, ONE, AUTO_OF_EIGHT, NATIVE), NARROW[:2], (8, 4096))


class Worker:
    """A process that holds one configuration ready."""

    def __init__(self, config: Config) -> None:
        devices = config.shards if config.kind == "native" else 1
        flags = f"--xla_force_host_platform_device_count={devices}"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "one_form.py"), json.dumps(asdict(config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"a process ended with status {self.process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        self.process.communicate()


@dataclass(frozen=True)
class Measured:
    """What one configuration took."""

    seconds: float
    temporaries: int
    resident: int
    compile: float
    loss: float
    jax: str


def measure(configs: Sequence[Config], rounds: int) -> dict[Config, Measured]:
    """Start all, warm them up one after the other, then interleave their steps."""
    workers: dict[Config, Worker] = {}
    for config in configs:
        note(f"starting {config}")
        workers[config] = Worker(config)
        workers[config].ask("step")
    steps: dict[Config, list[dict[str, float]]] = {config: [] for config in configs}
    for number in range(rounds):
        note(f"round {number + 1} of {rounds}")
        for config, worker in workers.items():
            steps[config].append(worker.ask("step"))
    found = {config: summary(worker, steps[config]) for config, worker in workers.items()}
    for worker in workers.values():
        worker.close()
    return found


def summary(worker: Worker, steps: Sequence[dict[str, float]]) -> Measured:
    stats = worker.ask("stats")
    seconds = statistics.median(step["seconds"] for step in steps)
    return Measured(seconds=seconds, loss=steps[-1]["loss"], **stats)


def compile_times(counts: Sequence[int], rounds: int) -> dict[int, float]:
    note(f"compiling for {', '.join(map(str, counts))} shards")
    request = {"shards": counts, "width": 1024, "batch": 8192, "rounds": rounds}
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_times.py"), json.dumps(request)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    return {int(shards): seconds for shards, seconds in json.loads(done.stdout).items()}


def rows(found: dict[Config, Measured], base: Config) -> Iterable[list[str]]:
    for config, measured in found.items():
        yield [
            str(config) if config.width == 1024 else f"{config} (width {config.width})",
            report.milliseconds(measured.seconds),
            report.ratio(measured.seconds / found[base].seconds),
            report.megabytes(measured.temporaries),
            report.ratio(measured.temporaries / found[base].temporaries),
            report.megabytes(measured.resident),
            report.milliseconds(measured.compile),
        ]


def compile_rows(found: dict[int, float]) -> Iterable[list[str]]:
    for shards, seconds in found.items():
        empty = ["-"] * 5
        yield [f"compile only, {shards} shards", *empty, report.milliseconds(seconds)]


def of_auto(found: dict[Config, Measured]) -> Iterable[Target]:
    """What `auto` takes of the time and of the temporaries of a step that is not sharded."""
    plain = next(measured for config, measured in found.items() if config.kind == "unsharded")
    for config, auto in found.items():
        if config.at_once == "auto":
            what = f"{config.shards} shards, auto / unsharded"
            yield Target(f"time, {what}", auto.seconds / plain.seconds, 1.02)
            yield Target(f"temporaries, {what}", auto.temporaries / plain.temporaries, 0.25)


def targets(
    wide: dict[Config, Measured], narrow: dict[Config, Measured], compiled: dict[int, float]
) -> list[Target]:
    def seconds(config: Config, base: Config) -> float:
        return wide[config].seconds / wide[base].seconds

    return [
        *of_auto(wide),
        *of_auto(narrow),
        Target("time, 64 shards, at_once=1 / native 64", seconds(ONE, NATIVE), 0.85),
        Target(
            "resident, 64 shards, at_once=1 / native 64",
            wide[ONE].resident / wide[NATIVE].resident,
            1 / 15,
        ),
        Target(
            "temporaries, 64 shards, at_once=1 / unsharded",
            wide[ONE].temporaries / wide[UNSHARDED].temporaries,
            1 / 30,
        ),
        Target("compile, 4096 shards / 8 shards", compiled[4096] / compiled[8], 1.1),
    ]


def check_losses(found: dict[Config, Measured], base: Config) -> None:
    """A form that computes something else is not a fair comparison."""
    for config, measured in found.items():
        if abs(measured.loss - found[base].loss) > 1e-3 * abs(found[base].loss):
            raise SystemExit(f"{config} ends at loss {measured.loss}, not {found[base].loss}")


def note(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What simulating a mesh costs.")
    parser.add_argument("--rounds", type=int, default=5, help="steps timed per configuration")
    parser.add_argument("--bare", action="store_true", help="no form that has no target")
    asked = parser.parse_args()
    rounds = asked.rounds
    first, second, compiled_for = BARE if asked.bare else (WIDE, NARROW, COMPILED)
    wide = measure(first, rounds)
    narrow = measure(second, max(3, rounds // 2))
    check_losses(wide, UNSHARDED)
    check_losses(narrow, NARROW[0])
    compiled = compile_times(compiled_for, max(11, rounds))  # half a second each, and noisy
    header = ["step", "time", "/ unsharded", "temporaries", "/ unsharded", "resident", "compile"]
    body = [*rows(wide, UNSHARDED), *rows(narrow, NARROW[0]), *compile_rows(compiled)]
    print(report.machine("CPU", wide[UNSHARDED].jax) + "\n")
    print(report.table(header, body) + "\n")
    report.conclude(targets(wide, narrow, compiled))


if __name__ == "__main__":
    main()

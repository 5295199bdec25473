"""The same comparison on one GPU: a batch that fits unsharded, and one that does not.

    python3 benchmarks/simulate_gpu.py          # from the root of the repository, nothing installed

The model is the one of `simulate.py`, four times as wide. Steps are interleaved round by round and
the median is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import report
import workload
from report import Target

WIDTH = 4096
FITS = 65_536
TOO_LARGE = 2_097_152

Config = tuple[str, int, int | str]
UNSHARDED: Config = ("unsharded", 1, 1)
BY_HAND: Config = ("accumulated", 64, 1)
AUTO: Config = ("simulated", 64, "auto")
AUTOS: tuple[Config, ...] = (("simulated", 8, "auto"), AUTO, ("simulated", 256, "auto"))
SMALL = (
    UNSHARDED,
    BY_HAND,
    ("simulated", 64, 1),
    *AUTOS,
    ("simulated", 8, 1),
)
LARGE = (UNSHARDED, BY_HAND, ("simulated", 64, 1), AUTO)


class Ready:
    """A compiled step, the times it took and, if it could not run, why."""

    def __init__(self, config: Config, args: tuple[Any, ...]) -> None:
        self.args, self.times, self.temporaries, self.failure = args, [], None, ""
        self.step = self._guard(lambda: self._compile(config))
        self.run(timed=False)

    def _compile(self, config: Config) -> Any:
        compiled = jax.jit(workload.make_step(*config)).lower(*self.args).compile()
        self.temporaries = compiled.memory_analysis().temp_size_in_bytes
        return compiled

    def run(self, timed: bool = True) -> None:
        if self.failure:
            return
        began = time.perf_counter()
        self._guard(lambda: jax.block_until_ready(self.step(*self.args)))
        if timed and not self.failure:
            self.times.append(time.perf_counter() - began)

    def _guard(self, action: Any) -> Any:
        try:
            return action()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            self.failure = "out of memory"
            return None

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.times) if self.times else None


def name(config: Config) -> str:
    kind, shards, at_once = config
    return {
        "unsharded": "unsharded",
        "accumulated": f"scan by hand, {shards} slices",
        "simulated": f"simulated, {shards} shards, at_once={at_once}",
    }[kind]


def measure(configs: tuple[Config, ...], batch: int, rounds: int) -> dict[Config, Ready]:
    args = (workload.make_params(WIDTH), *workload.make_batch(WIDTH, batch))
    ready = {}
    for config in configs:
        print(f"... batch {batch}: {name(config)}", file=sys.stderr, flush=True)
        ready[config] = Ready(config, args)
    for _ in range(rounds):
        for step in ready.values():
            step.run()
    return ready


def rows(found: dict[Config, Ready], batch: int) -> list[list[str]]:
    base = found[UNSHARDED]
    return [
        [
            f"batch {batch}: {name(config)}",
            ready.failure or report.milliseconds(ready.seconds),
            _over(ready.seconds, base.seconds),
            report.megabytes(ready.temporaries),
            _over(ready.temporaries, base.temporaries),
        ]
        for config, ready in found.items()
    ]


def _over(value: float | None, base: float | None) -> str:
    return report.ratio(value / base) if value is not None and base else "-"


def targets(small: dict[Config, Ready]) -> list[Target]:
    def over(config: Config, base: Config) -> tuple[float, float]:
        one, other = small[config], small[base]
        assert one.seconds
        assert other.seconds
        assert one.temporaries
        assert other.temporaries
        return one.seconds / other.seconds, one.temporaries / other.temporaries

    found = [Target("time, 64 shards, auto / scan by hand", over(AUTO, BY_HAND)[0], 1.00)]
    for config in AUTOS:
        time_taken, memory = over(config, UNSHARDED)
        what = f"{config[1]} shards, auto / unsharded"
        found.append(Target(f"time, {what}", time_taken, 1.02))
        found.append(Target(f"temporaries, {what}", memory, 0.25))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What simulating a mesh costs on one GPU.")
    parser.add_argument("--rounds", type=int, default=20, help="steps timed per configuration")
    rounds = parser.parse_args().rounds
    small = measure(SMALL, FITS, rounds)
    large = measure(LARGE, TOO_LARGE, 3)
    header = ["step", "time", "/ unsharded", "temporaries", "/ unsharded"]
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    print(report.table(header, rows(small, FITS) + rows(large, TOO_LARGE)) + "\n")
    report.conclude(targets(small))
    runs = all(large[config].seconds for config in LARGE if config[0] == "simulated")
    print(f"\nout of memory unsharded: {large[UNSHARDED].failure or 'no'}; simulated runs: {runs}")


if __name__ == "__main__":
    main()

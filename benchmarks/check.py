"""How long `sw.check` of a transformer's training step takes, right and wrong.

    python benchmarks/check.py                  # twelve layers, a step of some seconds
    python benchmarks/check.py --size tiny      # a small one, in which compiling is all

The check is on 1, 2, 4 and 8 devices. Its time is given in units of one plain step, compiled and
run on one device: what JAX takes to trace, lower and compile is counted apart, by JAX itself. Each
check is of a function that has not been seen before, as in a test suite.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import forms
import jax
import report
import transformer
from jax import lax
from jax.sharding import PartitionSpec as P
from report import Target

import shardwise as sw

MESH = {"data": [1, 2, 4, 8]}
COMPILING = ("backend_compile_duration", "jaxpr_to_mlir_module_duration")
compiling = 0.0
compiled = 0


def right() -> Callable[..., Any]:
    """The step of the other benchmarks, as a function of its own."""
    return lambda params, tokens, *, mesh: transformer.FORMS.sharded(params, tokens, mesh=mesh)


def wrong() -> Callable[..., Any]:
    """The textbook recipe: `pmean` of a gradient that autodiff has already summed."""

    def body(params: Any, tokens: Any) -> Any:
        loss, grads = jax.value_and_grad(transformer.mean_loss)(params, tokens)
        return lax.pmean(loss, "data"), forms.descend(params, lax.pmean(grads, "data"))

    def step(params: Any, tokens: Any, *, mesh: Any) -> Any:
        specs = (P(), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, tokens)

    return step


def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
    global compiling, compiled
    if event.endswith(COMPILING):
        compiling += duration_secs
        compiled += event.endswith(COMPILING[0])


def step_seconds(args: Any, rounds: int = 2) -> float:
    """One plain step on one device."""
    step = jax.jit(transformer.FORMS.unsharded)
    jax.block_until_ready(step(*args))
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(step(*args))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(
    make: Callable[[], Callable[..., Any]], args: Any, ok: bool
) -> tuple[float, float, int]:
    """Seconds of a check without compiling, seconds of compiling, programs compiled."""
    before = compiling, compiled
    began = time.perf_counter()
    verdict = sw.check(make(), *args, mesh=MESH)
    taken = time.perf_counter() - began
    if verdict.ok is not ok:
        raise AssertionError(str(verdict))
    spent = compiling - before[0]
    return taken - spent, spent, compiled - before[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="What a check costs, in plain steps.")
    parser.add_argument("--size", choices=transformer.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=1, help="checks of each kind")
    asked = parser.parse_args()
    size = transformer.SIZES[asked.size]
    args = transformer.make(size)
    jax.monitoring.register_event_duration_secs_listener(listen)
    rows, targets = [], []
    for name, make, ok in (("right", right, True), ("wrong, with the line", wrong, False)):
        step = step_seconds(args)  # anew: a machine may grow slower
        taken, spent, count = min(measure(make, args, ok) for _ in range(asked.rounds))
        rows.append([name, _s(step), _s(taken), f"{taken / step:.1f}", _s(spent), str(count)])
        targets.append(Target(f"check, {name} / plain step", taken / step, 5.0))
    print(report.machine("CPU", jax.__version__) + "\n")
    title = f"check on 1, 2, 4, 8 ({asked.size})"
    header = [title, "plain step", "check", "steps", "compiling", "programs"]
    print(report.table(header, rows) + "\n")
    report.conclude(targets)


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


if __name__ == "__main__":
    main()

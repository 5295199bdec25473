"""How long `sw.check` of a small training step takes, of a right one and of a wrong one.

    python benchmarks/check.py

The first check of a process pays for starting JAX's compiler; it is printed apart. Each further one
is of a function that has not been seen before, as in a test suite.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import report
import workload
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

WIDTH, BATCH = 64, 64
SIZES = {"data": [1, 2, 4, 8]}


def right() -> Callable[..., Any]:
    """The step of the other benchmarks, as a function of its own."""
    return lambda params, x, y, *, mesh: workload.sharded(params, x, y, mesh=mesh)


def wrong() -> Callable[..., Any]:
    """The textbook recipe: `pmean` of a gradient that autodiff has already summed."""

    def body(params: Any, x: Any, y: Any) -> Any:
        return lax.pmean(jax.grad(workload.mean_loss)(params, x, y), "data")

    def step(params: Any, x: Any, y: Any, *, mesh: Any) -> Any:
        specs = (P(), P("data"), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, x, y)

    return step


def seconds(make: Callable[[], Callable[..., Any]], args: Any, ok: bool) -> float:
    began = time.perf_counter()
    verdict = sw.check(make(), *args, mesh=SIZES)
    taken = time.perf_counter() - began
    if verdict.ok is not ok:
        raise AssertionError(str(verdict))
    return taken


def main() -> None:
    args = (workload.make_params(WIDTH), *workload.make_batch(WIDTH, BATCH))
    rows = [["first in the process, right", f"{seconds(right, args, True):.2f} s"]]
    for name, make, ok in (("right", right, True), ("wrong, with the line", wrong, False)):
        taken = statistics.median(seconds(make, args, ok) for _ in range(3))
        rows.append([name, f"{taken:.2f} s"])
    print(report.machine("CPU", jax.__version__) + "\n")
    print(report.table(["check of a perceptron's step on 1, 2, 4 and 8 devices", "time"], rows))


if __name__ == "__main__":
    main()

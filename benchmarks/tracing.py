"""What simulating costs before anything is compiled, against `jax.jit`'s own of the same program.

    python benchmarks/tracing.py            # from the root of the repository
    python benchmarks/tracing.py --quick

A training step of unrolled layers, the same with layers that are split over the devices, and a
chain of collectives, each short and long. `jit` traces and lowers the `shard_map`, on eight
virtual devices; `jit` of the simulated program traces it and lowers what the simulator makes of it.
The least processor time of four to fifteen counts, each with a different function.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import report
from jax import lax
from jax.sharding import PartitionSpec as P
from report import Target

import shardwise as sw

MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
WIDTH = 16
ROUNDS, LONG = (4, 15), 2.0
"""How often each is traced: at least and at most, and until it took so many seconds."""


def layers(count: int) -> tuple[Callable[..., Any], Any]:
    """A training step with its layers written one after another."""

    def body(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            y = x
            for w, b in params:
                y = jnp.tanh(y @ w + b)
            return lax.pmean(jnp.mean(y**2), "data")

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    f = jax.shard_map(body, mesh=MESH, in_specs=(P(), P("data")), out_specs=(P(), P()))
    params = [(jnp.eye(WIDTH), jnp.zeros(WIDTH)) for _ in range(count)]
    return f, (params, jnp.ones((16, WIDTH)))


def split_layers(count: int) -> tuple[Callable[..., Any], Any]:
    """The same with every layer split over the devices, which meet in each of them."""

    def body(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            y = x
            for up, down in params:
                y = y + lax.psum(jnp.tanh(y @ up) @ down, "data")
            return jnp.mean(y**2)

        value, grads = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    specs = [(P(None, "data"), P("data"))] * count
    f = jax.shard_map(body, mesh=MESH, in_specs=(specs, P()), out_specs=(P(), specs))
    params = [(jnp.eye(WIDTH), jnp.eye(WIDTH)) for _ in range(count)]
    return f, (params, jnp.ones((16, WIDTH)))


def collectives(count: int) -> tuple[Callable[..., Any], Any]:
    """A chain in which every step waits for the others."""

    def body(x: Any) -> Any:
        for k in range(count):
            x = x + lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)]) * (1.0 / (k + 1))
        return x

    f = jax.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    return f, (jnp.ones((16, WIDTH)),)


def seconds(make: Callable[[], tuple[Callable[..., Any], Any]]) -> tuple[float, float]:
    """The least processor time of either, by turns: others that use the machine do not count."""
    found: dict[bool, list[float]] = {False: [], True: []}
    # Short ones more often: the least of a few is not the least there is.
    while len(found[True]) < ROUNDS[0] or (
        sum(found[True]) < LONG and len(found[True]) < ROUNDS[1]
    ):
        for simulated, times in found.items():
            f, args = make()
            f = sw.simulate(f) if simulated else f
            gc.collect()  # what others have left behind is not this one's to clear away
            began = time.process_time()
            jax.jit(lambda *a, f=f: f(*a)).trace(*args).lower()
            times.append(time.process_time() - began)
    return min(found[False]), min(found[True])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter programs")
    quick = parser.parse_args().quick
    cases = {
        "unrolled layers": (layers, (25, 50) if quick else (50, 200)),
        "split layers": (split_layers, (25, 50) if quick else (25, 100)),
        "collectives": (collectives, (30, 60) if quick else (60, 240)),
    }
    rows, found = [], []
    for name, (make, counts) in cases.items():
        seconds(lambda make=make: make(2))  # what is imported and measured once
        times = {n: seconds(lambda n=n, make=make: make(n)) for n in counts}
        for n, (plain, ours) in times.items():
            cells = report.milliseconds(plain), report.milliseconds(ours)
            rows.append([f"{n} {name}", *cells, report.ratio(ours / plain)])
        first, last = counts[0], counts[-1]
        plain, ours = times[last]
        found.append(Target(f"tracing and lowering, {last} {name} / jit", ours / plain, 1.5))
        growth = ours / times[first][1] / (last / first)
        found.append(Target(f"growth of time / growth of {name}", growth, 1.1))
    print(report.machine("CPU", jax.__version__) + "\n")
    print(report.table(["a program of", "jit", "simulated", "ratio"], rows) + "\n")
    report.conclude(found)


if __name__ == "__main__":
    main()

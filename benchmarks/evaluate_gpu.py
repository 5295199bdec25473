"""Evaluation from host memory on one GPU: the bus, the compute, the sum.

    python3 benchmarks/evaluate_gpu.py          # from the root of the repository, nothing installed

1. Bound by the bus: a trivial loss over 8 GiB of host memory, against a plain `jnp.asarray` loop, a
   loop with `device_put` two ahead, and a copy from pinned memory, which is as fast as the bus is.
   Ordinary memory is copied to pinned memory on the way; how fast the host does that is shown too.
2. Bound by compute: a network over data in host memory, against the same compiled step over data
   that is on the device already.
3. Many examples: 10^9 of them, made on the device, against the exact answer.
4. A chosen batch: a step whose temporaries would not fit, and one that runs out of memory.
5. Other data from host memory: several arrays, short rows, `uint8` images, tokens with a mask.
6. The first run of a process against later ones (`--first`, alone).

Repeated in turn; the median is printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import report

from shardwise._runtime.evaluate import evaluate
from shardwise._runtime.evaluate.step import memory

WIDTH = 1024
GIB = 1 << 30
COPIERS = 16


def timed(entries: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median time of each, in turn; the first round compiles and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in entries}
    for number in range(rounds + 1):
        for name, run in entries.items():
            began = time.perf_counter()
            run()
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def row_loss(scale: Any, batch: Any) -> jax.Array:
    return jnp.sum(batch * batch, axis=-1) * scale


def bus(size: int, batch: int, rounds: int) -> float:
    x = np.empty((size // (4 * WIDTH), WIDTH), np.float32)
    x[:] = np.linspace(0, 1, WIDTH, dtype=np.float32)
    steps = range(0, len(x), batch)
    jitted = jax.jit(lambda b: row_loss(1.0, b).sum())

    def plain() -> float:
        return sum(float(jitted(jnp.asarray(x[k : k + batch]))) for k in steps) / len(x)

    def ahead() -> float:
        waiting, sums = [], []
        for k in steps:
            waiting.append(jax.device_put(x[k : k + batch]))
            if len(waiting) > 2:
                sums.append(jitted(waiting.pop(0)))
        sums.extend(map(jitted, waiting))
        return float(sum(sums)) / len(x)

    def ours() -> float:
        return evaluate(row_loss, 1.0, x, batch=batch, progress=False)["mean"]

    def ours_chosen() -> float:
        return evaluate(row_loss, 1.0, x, progress=False)["mean"]

    entries: dict[str, Callable[[], Any]] = {
        "plain jnp.asarray loop": plain,
        "device_put two ahead": ahead,
        "shardwise.evaluate": ours,
        "shardwise.evaluate, batch chosen": ours_chosen,
    }
    pinned = _pinned(x[: GIB // (4 * WIDTH)])
    found = timed(entries, rounds)
    copy = timed({"copy": lambda: jax.block_until_ready(pinned())}, 5)["copy"]
    found_rate = {name: x.nbytes / seconds / 1e9 for name, seconds in found.items()}
    found_rate["copy from pinned memory"] = min(GIB, x.nbytes) / copy / 1e9
    within = timed({"copy": _copy_within(x, batch)}, 5)["copy"]
    found_rate[f"copy within the host, {COPIERS} threads"] = x.nbytes / within / 1e9
    base = found_rate["plain jnp.asarray loop"]
    step = batch * WIDTH * 4 >> 20
    print(f"\n1. {x.nbytes / 1e9:.1f} GB from host memory, batch {batch} ({step} MiB)\n")
    rows = [[n, f"{r:.1f} GB/s", f"{r / base:.2f} x"] for n, r in found_rate.items()]
    print(report.table(["", "rate", "speed"], rows))
    got = found_rate["shardwise.evaluate, batch chosen"]  # what one gets without saying anything
    _verdict("batch chosen / plain loop", got / base, 6.0)
    limit = min(found_rate["copy from pinned memory"], x.nbytes / within / 1e9)
    _verdict("batch chosen / the slower of the two copies", got / limit, 0.85)
    return limit


def _pinned(x: np.ndarray) -> Callable[[], jax.Array]:
    device = jax.devices()[0]
    host = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    there = jax.sharding.SingleDeviceSharding(device)
    held = jax.block_until_ready(jax.device_put(x, host))
    return lambda: jax.device_put(held, there)


def _copy_within(x: np.ndarray, batch: int) -> Callable[[], Any]:
    held = [np.zeros_like(x[:batch]) for _ in range(COPIERS)]

    def work(first: int) -> None:
        for k in range(first * batch, len(x), COPIERS * batch):
            part = x[k : k + batch]
            held[first][: len(part)] = part

    pool = ThreadPoolExecutor(COPIERS)
    return lambda: list(pool.map(work, range(COPIERS)))


def network(params: Any, batch: Any) -> jax.Array:
    h = batch.astype(jnp.bfloat16)
    for w in params:
        h = jax.nn.gelu(h @ w)
    return jnp.mean(jnp.square(h.astype(jnp.float32)), axis=-1)


def compute(rows: int, batch: int, layers: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    params = [
        jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a), jnp.bfloat16)
        for a, b in zip([WIDTH] + [8192] * layers, [8192] * layers + [WIDTH], strict=True)
    ]
    x = np.empty((rows, WIDTH), np.float32)
    x.reshape(-1, min(rows, 4096), WIDTH)[:] = rng.random((min(rows, 4096), WIDTH), np.float32)
    resident = [jax.device_put(x[k : k + batch]) for k in range(0, rows, batch)]
    jitted = jax.jit(lambda p, b: network(p, b).sum())

    def on_device() -> float:
        return float(sum(jitted(params, b) for b in resident)) / rows

    def ours() -> float:
        return evaluate(network, params, x, batch=batch, progress=False)["mean"]

    found = timed({"data on the device": on_device, "shardwise.evaluate": ours}, rounds)
    flops = 2 * rows * sum(p.size for p in params)
    print(f"\n2. {rows:,} examples through {layers + 1} layers, batch {batch}\n")
    rows_ = [
        [name, report.milliseconds(s), f"{flops / s / 1e12:.0f} TFLOP/s"]
        for name, s in found.items()
    ]
    print(report.table(["", "time", "rate"], rows_))
    _verdict(
        "four matrix layers, from host / data on the device",
        found["data on the device"] / found["shardwise.evaluate"],
        0.97,
    )


CYCLE = 1 << 24


def many(count: int) -> None:
    """A thousand values from each of a million examples: the sum has a closed form."""

    def fn(_: Any, batch: Any) -> jax.Array:
        index = batch[:, None] * 1000 + jnp.arange(1000, dtype=jnp.int32)
        return ((index * 10_368_889) & (CYCLE - 1)).astype(jnp.float32) * (1 / CYCLE)

    data = np.arange(count // 1000, dtype=np.int32)
    result = evaluate(fn, None, data, batch=16_384, progress=False)
    cycles, rest = divmod(count, CYCLE)
    last = np.arange(rest, dtype=np.int64) * 10_368_889 & (CYCLE - 1)
    want = Fraction(cycles * (CYCLE * (CYCLE - 1) // 2) + int(last.sum()), CYCLE) / count
    error = float(abs(Fraction(result["mean"]) - want) / want)
    print(f"\n3. {count:,} values in {result.seconds:.2f} s: relative error {error:.1e}")
    _verdict("1e-7 over the error", 1e-7 / max(error, 1e-30), 1.0)


def chosen() -> None:
    """Two GiB of temporaries per example: 64 of them do not fit.

    They are two arrays of a GiB, since XLA tries reductions out while it compiles, one at a time.
    """

    def fn(_: Any, batch: Any) -> jax.Array:
        places = jnp.arange(1 << 28, dtype=jnp.float32)
        pair = batch[:, :1] + places, batch[:, 1:2] * places
        one, other = jax.lax.optimization_barrier(pair)
        return jnp.mean(one, axis=-1) + jnp.mean(other, axis=-1)

    x = np.ones((128, 8), np.float32)
    result = evaluate(fn, None, x, progress=False)
    print(f"\n4. Two GiB per example: the figures say batch {result.batch}, {result.seconds:.1f} s")
    share, memory._SHARE = memory._SHARE, 100.0  # believe that anything fits
    result = evaluate(lambda s, b: fn(s, b), None, x, progress=False)
    memory._SHARE = share
    print(f"   Found out by running: batch {result.batch}, {result.seconds:.1f} s")
    for note in result.notes:
        print(f"   {note}")


FOUND: list[report.Target] = []


def _verdict(what: str, got: float, want: float) -> None:
    FOUND.append(report.Target(what, got, want, at_least=True))


def kinds(size: int, rounds: int, limit: float) -> None:
    """Rates for data of other forms; `limit` is the rate that pageable memory can have at best."""

    def sums(_: Any, batch: Any) -> jax.Array:
        leaves = jax.tree.leaves(batch)
        return sum(x.reshape(len(x), -1).astype(jnp.float32).sum(-1) for x in leaves)

    cases = {
        "three arrays": {"x": (np.float32, (512,)), "z": (np.float32, (511,)), "y": (np.int32, ())},
        "rows of 64 bytes": {"x": (np.float32, (16,))},
        "uint8 images and labels": {"x": (np.uint8, (224, 224, 3)), "y": (np.int32, ())},
        "tokens with a mask": {"tokens": (np.int32, (512,)), "mask": (np.bool_, (512,))},
    }
    rows = []
    for name, leaves in cases.items():
        each = sum(np.dtype(d).itemsize * int(np.prod(s, dtype=int)) for d, s in leaves.values())
        data = {key: np.ones((size // each, *s), d) for key, (d, s) in leaves.items()}
        batch = evaluate(sums, None, data, progress=False).batch
        run = {
            "ours": lambda data=data: evaluate(sums, None, data, progress=False),
            "alone": _copies(list(data.values()), batch),
        }
        ours, alone = (size / seconds / 1e9 for seconds in timed(run, rounds).values())
        cells = [f"{ours:.1f} GB/s", f"{alone:.1f} GB/s", f"{ours / limit:.2f} x"]
        rows.append([name, f"{each:,} B", f"{batch:,}", *cells])
        _verdict(f"{name} / the slower copy", ours / limit, 0.85)
    print("\n5. Other data from host memory, batch chosen\n")
    header = ["", "an example", "batch", "evaluate", "device_put alone", "/ the slower copy"]
    print(report.table(header, rows))


def _copies(leaves: list[np.ndarray], batch: int) -> Callable[[], Any]:
    """The copies of an evaluation and nothing else: what JAX can do from ordinary memory."""

    def put(start: int) -> None:
        jax.block_until_ready(jax.device_put([leaf[start : start + batch] for leaf in leaves]))

    pool = ThreadPoolExecutor(COPIERS)
    return lambda: list(pool.map(put, range(0, len(leaves[0]), batch)))


def first(size: int, compiled: bool) -> None:
    """How long the first run of a process takes, compiling included, or after one small step."""
    x = np.empty((size // (4 * WIDTH), WIDTH), np.float32)
    x.reshape(-1, 4096, WIDTH)[:] = np.float32(0.5)
    jax.block_until_ready(jnp.ones(8))  # the device is there
    if compiled:
        evaluate(row_loss, 1.0, x[:16_384], batch=16_384, progress=False)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        evaluate(row_loss, 1.0, x, batch=16_384, progress=False)
        times.append(time.perf_counter() - began)
    print(f"\n6. {x.nbytes / 1e9:.1f} GB: " + ", ".join(f"{t:.2f} s" for t in times))
    FOUND.append(report.Target("first run / later ones", times[0] / min(times[1:]), 1.2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1 << 21)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--skip-chosen", action="store_true")
    parser.add_argument("--bus-only", action="store_true", help="1 and 5 alone")
    parser.add_argument("--first", action="store_true", help="6 alone")
    parser.add_argument("--compiled", action="store_true", help="6 after one small step")
    args = parser.parse_args()
    print(report.machine(jax.devices()[0].device_kind, jax.__version__))
    if args.first:
        first(int(args.gib * GIB), args.compiled)
        report.conclude(FOUND)
        return
    limit = bus(int(args.gib * GIB), args.batch, args.rounds)
    kinds(int(args.gib * GIB), args.rounds, limit)
    if not args.bus_only:
        compute(args.rows, args.batch, args.layers, args.rounds)
        many(args.count)
        if not args.skip_chosen:
            chosen()
    print()
    report.conclude(FOUND)


if __name__ == "__main__":
    main()

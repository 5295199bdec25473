"""An evaluation from host memory: shardwise next to what people write themselves.

    make bench            # or: python benchmarks/evaluate.py [--rows 400000] [--billion]

All do the same work, the mean loss of a small network over the same array, interleaved round by
round in one process on one CPU device; the median is printed. Peers that are not installed are left
out. Then the same for small batches, where a step takes less time than handing it over; here the
shortest time counts. The last table is about the number itself: the error of a mean over many
examples.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import report
from jax.sharding import Mesh
from report import Target

from shardwise._runtime.evaluate import evaluate

WIDTH, HIDDEN, BATCH = 256, 64, 4096
CYCLE = 1 << 24


def loss(params: Any, batch: Any) -> jax.Array:
    hidden = jnp.tanh(batch["x"] @ params["a"])
    return (hidden @ params["b"] - batch["y"]) ** 2


def make_problem(rows: int) -> tuple[Any, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    params = {
        "a": rng.normal(size=(WIDTH, HIDDEN)).astype(np.float32) / 16,
        "b": rng.normal(size=HIDDEN).astype(np.float32),
    }
    x = rng.random((rows, WIDTH), np.float32)
    return jax.device_put(params), {"x": x, "y": x[:, 0].copy()}


def batches(data: dict[str, np.ndarray], batch: int = BATCH) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(data["y"]), batch):
        yield {name: array[start : start + batch] for name, array in data.items()}


jitted = jax.jit(lambda params, batch: loss(params, batch).sum())


def plain(params: Any, data: Any, size: int = BATCH) -> float:
    """The naive loop."""
    total = 0.0
    for batch in batches(data, size):
        total += float(jitted(params, jax.tree.map(jnp.asarray, batch)))
    return total / len(data["y"])


def prefetched(params: Any, data: Any) -> float:
    """Copies two batches ahead, as `flax.jax_utils.prefetch_to_device` does for `pmap`."""
    ahead: list[Any] = []
    sums = []
    for batch in batches(data):
        ahead.append(jax.device_put(batch))
        if len(ahead) > 2:
            sums.append(jitted(params, ahead.pop(0)))
    sums.extend(jitted(params, batch) for batch in ahead)
    return float(sum(sums)) / len(data["y"])


def grain(params: Any, data: Any) -> float:
    """Grain: a random-access source, batches, read-ahead threads."""
    import grain

    class Source:
        def __len__(self) -> int:
            return -(-len(data["y"]) // BATCH)

        def __getitem__(self, k: Any) -> dict[str, np.ndarray]:
            return {n: a[int(k) * BATCH : (int(k) + 1) * BATCH] for n, a in data.items()}

    stream = grain.MapDataset.source(Source()).to_iter_dataset()
    stream = grain.experimental.device_put(stream, jax.devices()[0])
    return float(sum(jitted(params, batch) for batch in stream)) / len(data["y"])


def torch(params: Any, data: Any) -> float:
    """The same network in torch, on its own tensors."""
    import torch

    a, b = (torch.from_numpy(np.array(params[k])) for k in ("a", "b"))
    total = 0.0
    with torch.no_grad():
        for batch in batches(data):
            x, y = torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])
            total += float(((torch.tanh(x @ a) @ b - y) ** 2).sum())
    return total / len(data["y"])


def ours(params: Any, data: Any, size: int = BATCH, **options: Any) -> float:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    return evaluate(loss, params, data, batch=size, mesh=mesh, progress=False, **options)["mean"]


def ours_with_journal(params: Any, data: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return ours(params, data, journal=os.path.join(folder, "journal.db"))


ENTRIES: dict[str, Callable[[Any, Any], float]] = {
    "plain jnp.asarray loop": plain,
    "device_put two ahead": prefetched,
    "grain, device prefetch": grain,
    "torch": torch,
    "shardwise.evaluate": ours,
    "shardwise.evaluate, journal": ours_with_journal,
}


def compare(rows: int, rounds: int) -> None:
    params, data = make_problem(rows)
    size = data["x"].nbytes + data["y"].nbytes
    want = np.mean([float(v) for v in _reference(params, data)])
    times: dict[str, list[float]] = {}
    values: dict[str, float] = {}
    for number in range(rounds + 1):
        for name, run in ENTRIES.items():
            try:
                began = time.perf_counter()
                values[name] = run(params, data)
                if number:  # the first round compiles
                    times.setdefault(name, []).append(time.perf_counter() - began)
            except ImportError:
                continue
    base = statistics.median(times["plain jnp.asarray loop"])
    rows_ = []
    for name, found in times.items():
        median = statistics.median(found)
        error = abs(values[name] / want - 1)
        rows_.append(
            [
                name,
                report.milliseconds(median),
                f"{size / median / 1e9:.2f} GB/s",
                f"{base / median:.2f} x",
                f"{error:.1e}",
            ]
        )
    print(f"\n{rows:,} examples of {WIDTH} floats, {size / 1e6:,.0f} MB\n")
    print(report.table(["", "time", "rate", "speed", "error of the mean"], rows_))


def small_batches(steps: int, rounds: int) -> list[Target]:
    """Our time over that of the plain loop, for batches from 1 up."""
    found, rows = [], []
    for size in (1, 8, 64, 1024):
        params, data = make_problem(size * max(8, min(steps, 65_536 // size)))
        times: dict[Any, list[float]] = {plain: [], ours: []}
        for number in range(rounds + 1):
            for run, taken in times.items():
                began = time.perf_counter()
                run(params, data, size)
                if number:  # the first round compiles
                    taken.append(time.perf_counter() - began)
        count = len(data["y"]) // size
        base, own = min(times[plain]) / count, min(times[ours]) / count
        rows.append([f"{size}", f"{base * 1e6:,.0f} us", f"{own * 1e6:,.0f} us"])
        found.append(Target(f"evaluate / plain loop, batch {size}", own / base, 1.0))
    print("\n" + report.table(["batch", "plain loop, a step", "shardwise.evaluate"], rows))
    return found


def _reference(params: Any, data: Any) -> np.ndarray:
    a, b = (np.asarray(params[k], np.float64) for k in ("a", "b"))
    parts = [np.tanh(p["x"] @ a) @ b - p["y"] for p in batches(data)]
    return np.concatenate(parts) ** 2


class Indices:
    """The numbers from 0 to `count`, made as they are read."""

    dtype = np.dtype(np.int32)

    def __init__(self, count: int) -> None:
        self.shape = (count,)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        return np.arange(start, stop, dtype=np.int32)


def scrambled(index: Any) -> Any:
    """A value in [0, 1) for every index: each multiple of 2^-24 once per cycle of 2^24."""
    return ((index * 10_368_889) & (CYCLE - 1)).astype(jnp.float32) * jnp.float32(1 / CYCLE)


def scrambled_sum(count: int) -> Fraction:
    cycles, rest = divmod(count, CYCLE)
    last = np.arange(rest, dtype=np.int64) * 10_368_889 & (CYCLE - 1)
    return Fraction(cycles * (CYCLE * (CYCLE - 1) // 2) + int(last.sum()), CYCLE)


def summation(count: int, batch: int = 1 << 20) -> None:
    """One value per example, made on the device; the exact answer is known."""
    want = scrambled_sum(count) / count
    result = evaluate(lambda _, b: scrambled(b), None, Indices(count), batch=batch, progress=False)
    total, step = np.float32(0), jax.jit(lambda i: scrambled(i).sum())
    for start in range(0, count, batch):
        total += np.float32(step(np.arange(start, min(start + batch, count), dtype=np.int32)))
    losses = np.random.default_rng(0).normal(2.3, 0.1, 20_000_000).astype(np.float32)
    one_by_one = np.cumsum(losses, dtype=np.float32)[-1]
    one_want = Fraction(math.fsum(losses.tolist()))
    rows = [
        ["shardwise.evaluate", f"{count:,}", _error(result["mean"], want)],
        ["a float32 total of float32 step sums", f"{count:,}", _error(total / count, want)],
        ["a float32 total of losses, one by one", f"{len(losses):,}", _error(one_by_one, one_want)],
    ]
    print(f"\nThe mean of one value per example ({result.examples_per_second:.3g} examples/s)\n")
    print(report.table(["", "examples", "relative error"], rows))


def _error(got: Any, want: Fraction) -> str:
    return f"{float(abs(Fraction(float(got)) - want) / want):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="of small batches")
    parser.add_argument("--count", type=int, default=10**8, help="examples to sum")
    parser.add_argument("--billion", action="store_true", help="sum 10^9 examples, not 10^8")
    args = parser.parse_args()
    print(report.machine(jax.devices()[0].device_kind, jax.__version__))
    compare(args.rows, args.rounds)
    found = small_batches(args.steps, args.rounds)
    summation(10**9 if args.billion else args.count)
    print()
    report.conclude(found)


if __name__ == "__main__":
    main()

"""The cost model's compute and memory against one GPU: what share of the peak programs reach.

    python3 benchmarks/explain_gpu.py          # from the root of the repository, nothing installed

Each program runs on a mesh of one device, so that nothing is sent. Predicted is the time at the
full peak of the profile; measured by it is the share that is reached, the profile's `utilisation`.
Then `explain_platforms.py`: what is sent, compiled for virtual GPUs like the one of this machine.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import data_parallel
import explain_platforms
import jax
import jax.numpy as jnp
import numpy as np
import report
import tensor_parallel
import transformer_2d
import zero
from jax import P, lax
from jax.sharding import Mesh

import shardwise as sw

PEAK = dataclasses.replace(sw.Hardware.named("h200-node"), utilisation=1.0)


def products(weights: Any, tokens: Any, *, mesh: Any) -> Any:
    """The gradient of a stack of square matrices."""

    def body(weights: Any, tokens: Any) -> Any:
        def loss(weights: Any) -> Any:
            layer = lambda h, w: (jax.nn.relu(h @ w), None)  # noqa: E731
            return lax.pmean(jnp.mean(lax.scan(layer, tokens, weights)[0]), "data")

        return jax.grad(loss)(weights)

    specs = (P(), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(weights, tokens)


def programs() -> dict[str, tuple[Any, tuple[str, ...], Any]]:
    """By name: the step, its axes, and what makes its arguments."""

    def stack(dtype: Any) -> Any:
        return lambda: (jnp.ones((16, 8192, 8192), dtype) / 8192, jnp.ones((8192, 8192), dtype))

    block = {"examples": 4, "length": 2048, "features": 4096, "heads": 32, "head": 128}
    wide = {"examples": 8192, "features": 8192, "hidden": 32768, "targets": 8192}
    return {
        "16 products of 8192, bfloat16": (products, ("data",), stack(jnp.bfloat16)),
        "16 products of 8192, float32": (products, ("data",), stack(jnp.float32)),
        "transformer block": _gallery(transformer_2d, **block, hidden=16384),
        "tensor parallel MLP": _gallery(tensor_parallel, **wide),
        "data parallel MLP": _gallery(data_parallel, **wide),
        "ZeRO, Adam": _gallery(zero, **{**wide, "examples": 1024}),
    }


def _gallery(module: Any, **sizes: int) -> tuple[Any, tuple[str, ...], Any]:
    def args() -> Any:
        shapes = jax.eval_shape(functools.partial(module.example_args, **sizes))
        return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), shapes)

    return module.step, module.AXES, args


def measure(step: Any, args: Any, rounds: int = 8) -> float:
    """Median seconds, without the first."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        jax.block_until_ready(step(*args))
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main() -> None:
    rows = []
    for name, (step, axes, make) in programs().items():
        args = make()
        mesh = Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(axes)), axes)
        found = sw.explain(step, *args, mesh=mesh, hardware=PEAK)
        assert found.cost is not None
        compiled = jax.jit(functools.partial(step, mesh=mesh)).lower(*args).compile()
        seconds = measure(compiled, args)
        stats = compiled.memory_analysis()
        parts = stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.temp_size_in_bytes
        rows.append(
            [
                name,
                report.milliseconds(found.cost.compute),
                report.milliseconds(seconds),
                f"{found.cost.compute / seconds:.0%}",
                found.cost.bound,
                report.megabytes(found.memory.peak),
                report.megabytes(sum(parts)),
                f"{found.memory.peak / sum(parts):.2f}",
            ]
        )
        del args, compiled
        print(rows[-1], file=sys.stderr, flush=True)
    print(f"`python3 benchmarks/{Path(__file__).name}`. ", end="")
    print(report.machine(jax.devices()[0].device_kind, jax.__version__), end=".\n\n")
    header = ["step", "at the peak", "measured", "reached", "bound", "live peak", "XLA", "ratio"]
    print(report.table(header, rows), end="\n\n")
    explain_platforms.main()


if __name__ == "__main__":
    main()

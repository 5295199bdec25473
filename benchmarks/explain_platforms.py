"""What `sw.explain` reports of the same programs, compiled for CPUs and for GPUs.

    python3 benchmarks/explain_platforms.py          # from the root of the repository
    python3 benchmarks/explain_platforms.py h100     # without a GPU, with JAX's CUDA plugin

The GPUs are virtual, like the one of this machine: one GPU is enough for a mesh of any size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import report
from jax import P

import shardwise as sw

LAYERS, WIDTH, HIDDEN, HEADS, LENGTH = 8, 4096, 16384, 32, 2048


def shaped(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def mlp(params: Any, x: Any) -> Any:
    for up, down in params:
        x = x + jax.nn.relu(x @ up) @ down
    return jnp.mean(x.astype(jnp.float32) ** 2)


def transformer(params: Any, x: Any) -> Any:
    """A scan over layers of attention and MLP, recomputed in the backward pass."""

    def normal(x: Any) -> Any:
        wide = x.astype(jnp.float32)
        return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        q, k, v = jnp.einsum("bld,dchf->cblhf", normal(x), w["qkv"])
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("blhf,hfd->bld", mixed, w["out"])
        return x + jax.nn.gelu(normal(x) @ w["up"]) @ w["down"], None

    return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32) ** 2)


def step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(params, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient)

    return step


def programs() -> dict[str, tuple[Any, Any, Any]]:
    """By name: the step, its arguments and their specs."""
    pair = (shaped(WIDTH, HIDDEN), shaped(HIDDEN, WIDTH))
    split = (P("data", "model"), P("model", "data"))
    layers = {
        "qkv": (shaped(LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS), P(None, "data", None, "model")),
        "out": (shaped(LAYERS, HEADS, WIDTH // HEADS, WIDTH), P(None, "model", None, "data")),
        "up": (shaped(LAYERS, WIDTH, HIDDEN), P(None, "data", "model")),
        "down": (shaped(LAYERS, HIDDEN, WIDTH), P(None, "model", "data")),
    }
    weights = {name: array for name, (array, _) in layers.items()}
    specs = {name: spec for name, (_, spec) in layers.items()}
    tokens, examples = shaped(128, LENGTH, WIDTH), shaped(65536, WIDTH)
    return {
        "MLP": (step(mlp), ([pair] * 4, examples), ([split] * 4, P("data"))),
        "transformer": (step(transformer), (weights, tokens), (specs, P("data"))),
    }


def main() -> None:
    gpu: Any = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    figures, notes = [], ""
    for name, (f, args, specs) in programs().items():
        for sizes in ({"data": 1, "model": 1}, {"data": 4, "model": 2}, {"data": 16, "model": 4}):
            for platform in ("cpu", gpu):
                began = time.perf_counter()
                found = sw.explain(
                    f, *args, mesh=sw.mesh(sizes), in_specs=specs, compile=True, platform=platform
                )
                seconds, notes = time.perf_counter() - began, found.notes[-1]
                kinds: dict[str, int] = {}
                for use in found.collectives:
                    kinds[use.name] = kinds.get(use.name, 0) + use.least
                devices = sizes["data"] * sizes["model"]
                rows = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
                lines = sum(bool(use.where.file) for use in found.collectives)
                figures.append([
                    name, str(devices), platform, str(len(found.collectives)), str(lines), rows,
                    report.megabytes(found.bytes_sent), report.megabytes(found.memory.peak),
                    f"{found.work.flops / 1e12:.1f}", f"{seconds:.1f} s",
                ])  # fmt: skip
                print(figures[-1], file=sys.stderr, flush=True)
    print(notes, end="\n\n")
    print(f"`python3 benchmarks/{Path(__file__).name}`. ", end="")
    print(report.machine(jax.devices()[0].device_kind, jax.__version__), end=".\n\n")
    print(report.table(["step", "devices", "for", "rows", "with a line", "runs", "sent", "memory",
                        "TFLOP", "time"], figures))  # fmt: skip


if __name__ == "__main__":
    main()

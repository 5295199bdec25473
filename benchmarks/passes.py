"""Measure what each pass of the engine saves: the programs that the passes name, without each.

    python benchmarks/passes.py                     # all of them, in about fifteen minutes
    python benchmarks/passes.py pipeline recurrent  # these
    python benchmarks/passes.py --passes recompute split_loops

Figures are those without the pass over those with it, in one run: CPU seconds of tracing and
lowering, of compiling, of one step, and XLA's temporaries. A program that is lowered to the same
text with and without a pass does not use it; only tracing and lowering are compared then.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gallery
import jax
import jax.numpy as jnp
import kinds
import report
import transformer
from forms import Forms
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._engine.lower.passes import PASSES
from shardwise._engine.lower.switches import without

SMALLER = {"examples", "length", "microbatches", "groups"}
"""Sizes that are a quarter of those of the gallery: ratios do not need larger ones."""
KINDS = ("recurrent", "separable", "graph")
UNROLLED = 24
"""The layers of a model that is written out."""
PAYS = 1.05
ROUNDS = 3
"""Times are the least of so many: CPU seconds vary by some percent on a busy machine."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a program takes: CPU seconds, and bytes of temporaries."""

    text: str
    tracing: float
    compiling: float
    running: float
    memory: int


def programs(names: Sequence[str]) -> Iterator[tuple[str, Callable[[int], Any], Any]]:
    """Yield programs: their name, the simulated step by how many shards at once, arguments."""
    for name in gallery.SIZES:
        if not names or name in names:
            for key in SMALLER & gallery.SIZES[name].keys():
                gallery.SIZES[name][key] //= 4
            step, args = gallery.program(name)
            sizes = gallery.MESHES.get(name) or dict.fromkeys(sys.modules[name].AXES, 8)
            yield name, functools.partial(_simulated, step, sw.mesh(**sizes)), args
    for name in dir(kinds):
        make = getattr(kinds, name)
        if getattr(make, "__annotations__", {}).get("random") == "Random" and (
            name in names if names else name in KINDS
        ):
            loss, *args = make(kinds.Random())
            yield name, functools.partial(Forms(loss).simulated, 8), args
    if not names or "transformer" in names:
        args = transformer.make(transformer.SIZES["tiny"])
        yield "transformer", functools.partial(transformer.FORMS.simulated, 8), args
    if not names or "unrolled" in names:
        step, args = unrolled()
        yield "unrolled", functools.partial(_simulated, step, sw.mesh(data=8)), args


def _simulated(step: Any, mesh: Any, at_once: int) -> Any:
    return sw.simulate(step, mesh=mesh, at_once=at_once)


def unrolled() -> tuple[Callable[..., Any], Any]:
    """Return a gradient through layers that are written out, each split over the devices."""

    def step(weights: Any, x: Any, *, mesh: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            for up, down in weights:
                x = x + lax.psum(jnp.tanh(x @ up) @ down, "data")
            return jnp.mean(x**2)

        layers = [(P(None, "data"), P("data"))] * len(weights)
        body = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(layers, P()), out_specs=layers)
        return body(weights, x)

    weights = [(jnp.eye(64), jnp.eye(64)) for _ in range(UNROLLED)]
    return step, (weights, jnp.ones((64, 64)))


def lowered(make: Callable[[int], Any], at_once: int, args: Any) -> tuple[Any, float]:
    """Trace and lower a program; return it, and the least CPU seconds of a few counts."""
    times, program = [], None
    for _ in range(ROUNDS):
        step = make(at_once)
        gc.collect()
        started = time.process_time()
        program = jax.jit(lambda *args, step=step: step(*args)).lower(*args)
        times.append(time.process_time() - started)
    return program, min(times)


def measured(make: Callable[[int], Any], at_once: int, args: Any, base: Cost | None) -> Cost:
    """Measure a program; what is lowered to the text of `base` compiles and runs as that does."""
    program, tracing = lowered(make, at_once, args)
    text = program.as_text()
    if base is not None and base.text == text:
        return dataclasses.replace(base, tracing=tracing)
    started = time.process_time()
    compiled = program.compile()
    compiling = time.process_time() - started
    memory = compiled.memory_analysis().temp_size_in_bytes
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        jax.block_until_ready(compiled(*args))
        times.append(time.process_time() - started)
    return Cost(text, tracing, compiling, min(times), memory)


def ratios(without_pass: Cost, base: Cost) -> tuple[float, ...]:
    """Return tracing, compiling, running and memory without a pass over those with it."""
    names = ("tracing", "compiling", "running", "memory")
    return tuple(getattr(without_pass, name) / max(getattr(base, name), 1e-9) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--passes", nargs="*", default=[row.name for row in PASSES])
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 4])
    asked = parser.parse_args()
    chosen = [row for row in PASSES if row.name in asked.passes and row.applies()]
    rows: dict[str, list[tuple[tuple[float, ...], str]]] = {row.name: [] for row in chosen}
    for name, make, args in programs(asked.names):
        for at_once in asked.at_once:
            base = measured(make, at_once, args, None)
            for row in chosen:
                with without(row.name):
                    other = measured(make, at_once, args, base)
                found = ratios(other, base)
                rows[row.name].append((found, f"{name}, at_once={at_once}"))
                shown = ", ".join(f"{ratio:.2f}" for ratio in found)
                print(f"... {name} {at_once} {row.name}: {shown}", file=sys.stderr, flush=True)
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    table = []
    for row in chosen:
        best = [max(rows[row.name], key=lambda case: case[0][i]) for i in range(4)]
        cells = [f"{case[0][i]:.2f} ({case[1]})" for i, case in enumerate(best)]
        pays = any(case[0][i] >= PAYS for i, case in enumerate(best))
        table.append([row.name, row.backend, *cells, "pays" if pays else "does not pay"])
    header = ["without", "for", "trace", "compile", "step", "temporaries", "5 %"]
    print(report.table(header, table))


if __name__ == "__main__":
    main()

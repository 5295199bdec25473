"""What each pass of the engine saves: the programs of the gallery and of `kinds` without it.

    python benchmarks/passes.py                     # all of them, in about ten minutes
    python benchmarks/passes.py pipeline recurrent  # these
    python benchmarks/passes.py --passes recompute split_loops # these passes

Figures are those without the pass over those with it, in one run: CPU seconds of tracing and
compiling, of one step, and XLA's temporaries. A program that is lowered to the same text with and
without a pass is not concerned by it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gallery
import jax
import kinds
import report
from forms import Forms

import shardwise as sw
from shardwise._engine.lower.passes import PASSES
from shardwise._engine.lower.switches import without

SMALLER = {"examples", "length", "microbatches", "groups"}
"""Sizes that are a quarter of those of the gallery: ratios do not need larger ones."""
KINDS = ("recurrent", "separable", "graph")
PAYS = 1.05


@dataclasses.dataclass(frozen=True)
class Taken:
    """What a program takes."""

    text: str
    compiling: float
    running: float
    memory: int


def programs(names: Sequence[str]) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Yield programs: their name, the simulated step by how many shards at once, arguments."""
    for name in gallery.SIZES:
        if not names or name in names:
            for key in SMALLER & gallery.SIZES[name].keys():
                gallery.SIZES[name][key] //= 4
            step, args = gallery.program(name)
            example = sys.modules[name]
            sizes = gallery.MESHES.get(name) or dict.fromkeys(example.AXES, 8)
            mesh = sw.mesh(**sizes)
            yield (
                name,
                lambda at_once, s=step, m=mesh: sw.simulate(s, mesh=m, at_once=at_once),
                args,
            )
    for name in dir(kinds):
        make = getattr(kinds, name)
        if getattr(make, "__annotations__", {}).get("random") == "Random" and (
            name in names if names else name in KINDS
        ):
            loss, *args = make(kinds.Random())
            forms = Forms(loss)
            yield name, lambda at_once, f=forms: f.simulated(8, at_once), args


def measured(make: Callable[[Any], Any], at_once: int, args: Any, known: Sequence[Taken]) -> Taken:
    """Compile and run a program, unless it is lowered to the text of one that is known."""
    started = time.process_time()
    lowered = jax.jit(lambda *args: make(at_once)(*args)).lower(*args)
    text = lowered.as_text()
    for taken in known:
        if taken.text == text:
            return taken
    compiled = lowered.compile()
    compiling = time.process_time() - started
    memory = compiled.memory_analysis().temp_size_in_bytes
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(3):
        started = time.process_time()
        jax.block_until_ready(compiled(*args))
        times.append(time.process_time() - started)
    return Taken(text, compiling, min(times), memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--passes", nargs="*", default=[one.name for one in PASSES])
    parser.add_argument("--at-once", type=int, nargs="*", default=[1, 4])
    asked = parser.parse_args()
    chosen = [one for one in PASSES if one.name in asked.passes and one.applies()]
    rows: dict[str, list[tuple[float, float, float, str]]] = {one.name: [] for one in chosen}
    for name, make, args in programs(asked.names):
        for at_once in asked.at_once:
            base = measured(make, at_once, args, ())
            for one in chosen:
                with without(one.name):
                    other = measured(make, at_once, args, (base,))
                if other is base:
                    continue
                ratios = (
                    other.compiling / base.compiling,
                    other.running / base.running,
                    other.memory / max(1, base.memory),
                )
                rows[one.name].append((*ratios, f"{name}, at_once={at_once}"))
                shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"... {name} {at_once} {one.name}: {shown}", file=sys.stderr, flush=True)
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    table = []
    for one in chosen:
        best = [max(rows[one.name], key=lambda row: row[i], default=None) for i in range(3)]
        cells = [f"{row[i]:.2f} ({row[3]})" if row else "-" for i, row in enumerate(best)]
        pays = any(row is not None and row[i] >= PAYS for i, row in enumerate(best))
        table.append([one.name, one.backend, *cells, "pays" if pays else "does not pay"])
    header = ["without", "for", "compile", "step", "temporaries", "5 %"]
    print(report.table(header, table))


if __name__ == "__main__":
    main()

"""One training step in every form that is compared: memory, time and compile time.

A form takes `(params, batch)` and returns `(loss, new params)`; all compute the same numbers up to
rounding. `transformer.py` and `convnet.py` say of what model.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import report
from jax import lax
from jax.sharding import PartitionSpec as P
from report import Target

import shardwise as sw

Step = Callable[[Any, Any], tuple[jax.Array, Any]]
LEARNING_RATE = 0.1


def descend(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


@dataclass(frozen=True)
class Forms:
    """The forms of a step that goes down the gradient of this mean over a batch."""

    mean_loss: Callable[[Any, Any], jax.Array]

    def unsharded(self, params: Any, batch: Any) -> tuple[jax.Array, Any]:
        loss, grads = jax.value_and_grad(self.mean_loss)(params, batch)
        return loss, descend(params, grads)

    def accumulated(self, shards: int) -> Step:
        """What one writes by hand to save memory: a scan over slices that adds up the gradients."""

        def step(params: Any, batch: Any) -> tuple[jax.Array, Any]:
            def add(total: Any, part: Any) -> tuple[Any, None]:
                found = jax.value_and_grad(self.mean_loss)(params, part)
                return jax.tree.map(jnp.add, total, found), None

            zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
            parts = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), batch)
            (loss, grads), _ = lax.scan(add, zero, parts)
            return loss / shards, descend(params, jax.tree.map(lambda grad: grad / shards, grads))

        return step

    def sharded(self, params: Any, batch: Any, *, mesh: Any) -> tuple[jax.Array, Any]:
        """The step as it is written for many devices: autodiff sums the gradients over them."""

        def body(params: Any, batch: Any) -> tuple[jax.Array, Any]:
            def loss(params: Any) -> jax.Array:
                return lax.pmean(self.mean_loss(params, batch), "data")

            found, grads = jax.value_and_grad(loss)(params)
            return found, descend(params, grads)

        split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
        return split(params, batch)

    def simulated(self, shards: int, at_once: int | str) -> Any:
        return sw.simulate(self.sharded, mesh=sw.mesh(data=shards), at_once=at_once)

    def all(self, shards: list[int], at_once: list[int]) -> dict[str, Any]:
        """Those that are compared, by name."""
        found: dict[str, Any] = {"unsharded": self.unsharded}
        for n in shards:
            found[f"scan by hand, {n} slices"] = self.accumulated(n)
            for k in (1, "auto", *at_once):
                found[f"simulated, {n} shards, at_once={k}"] = self.simulated(n, k)
        return found


COMPARED = ("slices", "at_once=1")
"""The forms whose times to compile are compared."""


class Ready:
    """A step that is compiled: what it takes, and the times it took."""

    def __init__(self, step: Any, like: Any, times: int):
        self.lowering = self.compiling = float("inf")
        for _ in range(times):  # they vary: the shortest one counts
            jax.clear_caches()
            began = time.perf_counter()
            lowered = jax.jit(step).lower(*like)
            lowering = time.perf_counter() - began
            self.compiled = lowered.compile()
            self.lowering = min(self.lowering, lowering)
            self.compiling = min(self.compiling, time.perf_counter() - began - lowering)
        found = self.compiled.memory_analysis()
        assert found is not None
        self.temporaries = found.temp_size_in_bytes
        self.times: list[float] = []

    def run(self, args: Any) -> None:
        began = time.perf_counter()
        loss, _ = jax.block_until_ready(self.compiled(*args))
        self.times.append(time.perf_counter() - began)
        self.loss = float(loss)

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.times[1:]) if len(self.times) > 1 else None


def measure(steps: dict[str, Any], args: Any, rounds: int) -> dict[str, Ready]:
    """Compile all, then interleave their steps."""
    like = jax.eval_shape(lambda: args)
    ready = {}
    for name, step in steps.items():
        print(f"... {name}", file=sys.stderr, flush=True)
        ready[name] = Ready(step, like, 2 if name.endswith(COMPARED) else 1)
    for _ in range(rounds + 1 if rounds else 0):
        for one in ready.values():
            one.run(args)
            gc.collect()
    return ready


def targets(found: dict[str, Ready], shards: list[int]) -> list[Target]:
    out = []
    plain = found["unsharded"]
    for n in shards:
        one, auto = (found[f"simulated, {n} shards, at_once={k}"] for k in (1, "auto"))
        hand = found[f"scan by hand, {n} slices"]
        ratio = one.temporaries / hand.temporaries
        out.append(Target(f"temporaries, {n} shards, at_once=1 / by hand", ratio, 1.1))
        ratio = auto.temporaries / plain.temporaries
        out.append(Target(f"temporaries, {n} shards, auto / unsharded", ratio, 0.25))
        if one.seconds and hand.seconds and auto.seconds and plain.seconds:
            ratio = one.seconds / hand.seconds
            out.append(Target(f"time, {n} shards, at_once=1 / by hand", ratio, 1.0))
            ratio = auto.seconds / plain.seconds
            out.append(Target(f"time, {n} shards, auto / unsharded", ratio, 1.02))
        ratio = (one.lowering + one.compiling) / (hand.lowering + hand.compiling)
        out.append(Target(f"compile, {n} shards, at_once=1 / by hand", ratio, 1.1))
    return out


def rows(found: dict[str, Ready]) -> list[list[str]]:
    plain = found["unsharded"]
    return [
        [
            name,
            report.milliseconds(one.seconds),
            report.ratio(one.seconds / plain.seconds) if one.seconds and plain.seconds else "-",
            report.megabytes(one.temporaries),
            report.ratio(one.temporaries / plain.temporaries),
            report.milliseconds(one.lowering),
            report.milliseconds(one.compiling),
        ]
        for name, one in found.items()
    ]


def compare(
    what: str, forms: Forms, sizes: dict[str, Any], make: Callable[[Any], tuple[Any, Any]]
) -> None:
    """The command of a script: measure and print; `make` makes params and batch of a size."""
    parser = argparse.ArgumentParser(description=f"{what}'s step, sharded and not.")
    parser.add_argument("--size", choices=sizes, default="small")
    parser.add_argument("--shards", type=int, nargs="+", default=[64])
    parser.add_argument("--at-once", type=int, nargs="*", default=[], help="more rows")
    parser.add_argument("--rounds", type=int, default=5, help="steps timed per form; 0 for none")
    asked = parser.parse_args()
    args = make(sizes[asked.size])
    found = measure(forms.all(asked.shards, asked.at_once), args, asked.rounds)
    device = jax.devices()[0]
    print(report.machine(device.device_kind, jax.__version__) + f", size {asked.size}\n")
    header = ["step", "time", "/ unsharded", "temporaries", "/ unsharded", "trace", "compile"]
    print(report.table(header, rows(found)) + "\n")
    for n in asked.shards:
        print(f"{n} shards, auto: {forms.simulated(n, 'auto').plan(*args)}")
    print()
    report.conclude(targets(found, asked.shards))
    losses = [one.loss for one in found.values() if one.times]
    if losses and max(losses) - min(losses) > 1e-2 * abs(losses[0]):
        raise SystemExit(f"the forms end at different losses: {losses}")

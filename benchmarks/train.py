"""What a data-parallel step costs, against the ways to write it by hand.

    make bench                             # on the CPU, with eight virtual devices
    python3 benchmarks/train.py --gpu      # one GPU, from the root, nothing installed

Every form trains the same perceptron with clipped AdamW on the same batch; all are donated and
their steps are interleaved, round by round, in an order that turns. The ratio of two forms is the
median of the rounds' ratios. Memory is XLA's: arguments, results and temporaries, shared ones once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from eight_devices import GPU  # isort: skip

import jax
import jax.numpy as jnp
import optax
import report
import workload
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from report import Target

import shardwise as sw

PARTS = 8
WIDTH, BATCH = (4096, 65_536) if GPU else (512, 8192)
TOO_LARGE, MANY = 2_097_152, 64


def optimizer() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def losses(params: Any, batch: Any) -> jax.Array:
    """One loss per row, for shardwise."""
    x, y = batch
    *hidden, (weight, bias) = params
    for hidden_weight, hidden_bias in hidden:
        x = jax.nn.gelu(x @ hidden_weight + hidden_bias)
    return jnp.mean((x @ weight + bias - y) ** 2, axis=-1)


def update(tx: Any, params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state


@dataclass
class Form:
    """One way to write the step: what it takes from step to step, and how long it took."""

    name: str
    carry: Any
    run: Callable[[Any], tuple[Any, Any]]
    memory: int | None = None
    times: list[float] = field(default_factory=list)
    loss: float = 0.0

    def step(self, timed: bool = True) -> None:
        began = time.perf_counter()
        self.carry, loss = self.run(self.carry)
        jax.block_until_ready((self.carry, loss))
        if timed:
            self.times.append(time.perf_counter() - began)
        self.loss = float(loss)


def memory(lowered: Any) -> int:
    found = lowered.compile().memory_analysis()
    whole = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return whole - found.alias_size_in_bytes


def by_hand(name: str, gradient: Any, params: Any, batch: Any) -> Form:
    """A hand-written step around a gradient of the mean over the whole batch."""
    tx = optimizer()

    def step(carry: Any, batch: Any) -> Any:
        params, state = carry
        loss, grads = gradient(params, *batch)
        return update(tx, params, state, grads), loss

    compiled = jax.jit(step, donate_argnums=0)
    params = jax.tree.map(jnp.copy, params)
    carry = (params, jax.jit(tx.init)(params))
    form = Form(name, carry, lambda carry: compiled(carry, batch))
    form.memory = memory(compiled.lower(carry, batch))
    return form


def whole(params: Any, batch: Any) -> Form:
    return by_hand("jit by hand", jax.value_and_grad(workload.mean_loss), params, batch)


def scanned(params: Any, batch: Any, parts: int = PARTS) -> Form:
    def gradient(params: Any, x: Any, y: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            found = jax.value_and_grad(workload.mean_loss)(params, *part)
            return jax.tree.map(jnp.add, total, found), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        sliced = [a.reshape(parts, -1, *a.shape[1:]) for a in (x, y)]
        total, _ = lax.scan(add, zero, tuple(sliced))
        return jax.tree.map(lambda leaf: leaf / parts, total)

    return by_hand(f"lax.scan by hand, {parts} parts", gradient, params, batch)


def native(params: Any, batch: Any) -> Form:
    mesh = workload.native_mesh(PARTS)

    def body(params: Any, x: Any, y: Any) -> Any:
        return jax.value_and_grad(lambda p: lax.pmean(workload.mean_loss(p, x, y), "data"))(params)

    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P()}
    gradient = jax.shard_map(body, mesh=mesh, **specs)
    params = jax.device_put(params, NamedSharding(mesh, P()))
    batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
    return by_hand(f"shard_map by hand, {PARTS} devices", gradient, params, batch)


def multi_steps(params: Any, batch: Any) -> Form:
    """`optax.MultiSteps`: as many calls as parts make one step."""
    tx = optax.MultiSteps(optimizer(), PARTS)
    parts = [tuple(a.reshape(PARTS, -1, *a.shape[1:])[k] for a in batch) for k in range(PARTS)]
    jax.block_until_ready(parts)

    def step(carry: Any, part: Any) -> Any:
        params, state = carry
        loss, grads = jax.value_and_grad(workload.mean_loss)(params, *part)
        return update(tx, params, state, grads), loss

    compiled = jax.jit(step, donate_argnums=0)

    def run(carry: Any) -> Any:
        total = jnp.zeros(())
        for part in parts:
            carry, loss = compiled(carry, part)
            total += loss
        return carry, total / PARTS

    params = jax.tree.map(jnp.copy, params)
    carry = (params, jax.jit(tx.init)(params))
    form = Form(f"optax.MultiSteps, {PARTS} calls", carry, run)
    form.memory = memory(compiled.lower(carry, parts[0]))
    return form


def ours(name: str, params: Any, batch: Any, **options: Any) -> Form:
    step = sw.data_parallel(losses, optimizer(), **options)
    state = step.init(params)
    if isinstance(step.mesh, jax.sharding.Mesh):
        batch = jax.device_put(batch, NamedSharding(step.mesh, P("data")))

    def run(state: Any) -> Any:
        state, metrics = step(state, batch)
        return state, metrics["loss"]

    form = Form(f"shardwise, {name}", state, run)
    form.memory = memory(step.lower(state, batch))
    return form


def forms(params: Any, batch: Any) -> dict[str, Form]:
    one = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    found = {
        "jit": whole(params, batch),
        "one": ours("one device", params, batch, mesh=one),
        "scan": scanned(params, batch),
        "multi": multi_steps(params, batch),
        "parts": ours(f"accumulate={PARTS}", params, batch, mesh=one, accumulate=PARTS),
        "virtual": ours(f"virtual mesh of {PARTS}", params, batch, mesh=sw.mesh(data=PARTS)),
    }
    if not GPU:
        found["native"] = native(params, batch)
        found["real"] = ours(f"{PARTS} devices", params, batch, mesh=workload.native_mesh(PARTS))
    return found


def measure(found: dict[str, Form], rounds: int) -> None:
    running = list(found.values())
    for form in running:
        print(f"... {form.name}", file=sys.stderr, flush=True)
        form.step(timed=False)
        form.step(timed=False)
    alike(running)
    for number in range(rounds):
        # Whoever follows a large step finds its memory still warm: let everybody follow everybody.
        turn = number % len(running)
        for form in running[turn:] + running[:turn]:
            form.step()


def alike(running: list[Form]) -> None:
    """The same loss after the first update; later on a GPU's rounding has grown to a percent."""
    low, high = min(f.loss for f in running), max(f.loss for f in running)
    if high - low > 1e-3 * high:
        raise SystemExit(f"the forms do not train alike: {[(f.name, f.loss) for f in running]}")


def over(found: dict[str, Form], one: str, other: str) -> float:
    pairs = zip(found[one].times, found[other].times, strict=True)
    return statistics.median(a / b for a, b in pairs)


def targets(found: dict[str, Form]) -> list[Target]:
    best = min(("scan", "multi"), key=lambda key: statistics.median(found[key].times))
    reach = [
        Target("one device / jit by hand", over(found, "one", "jit"), 1.02),
        Target(f"accumulate / {found[best].name}", over(found, "parts", best), 1.02),
        Target(f"virtual mesh / {found[best].name}", over(found, "virtual", best), 1.02),
    ]
    if "real" in found:
        reach.append(Target("devices / shard_map by hand", over(found, "real", "native"), 1.02))
    return reach


def too_large() -> None:
    """A batch that does not fit unsharded, with `accumulate`."""
    params = workload.make_params(WIDTH)
    batch = workload.make_batch(WIDTH, TOO_LARGE)
    pair = {
        "scan": scanned(params, batch, MANY),
        "ours": ours(f"accumulate={MANY}", params, batch, accumulate=MANY),
    }
    measure(pair, 3)
    for form in pair.values():
        took = report.milliseconds(statistics.median(form.times))
        held = report.megabytes(form.memory)
        print(f"batch {TOO_LARGE:,}, {form.name}: {took}, {held}", flush=True)
    del pair
    try:
        whole(params, batch).step()
        print(f"batch {TOO_LARGE:,}, jit by hand: it fits")
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"batch {TOO_LARGE:,}, jit by hand: out of memory")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a data-parallel step costs.")
    parser.add_argument("--gpu", action="store_true", help="a model and a batch for one GPU")
    parser.add_argument("--rounds", type=int, default=24, help="steps timed per form")
    options = parser.parse_args()
    params = workload.make_params(WIDTH)
    found = forms(params, workload.make_batch(WIDTH, BATCH))
    measure(found, options.rounds)
    rows = [
        [
            form.name,
            report.milliseconds(statistics.median(form.times)),
            report.ratio(over(found, key, "jit")),
            report.megabytes(form.memory),
        ]
        for key, form in found.items()
    ]
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    print(report.table(["step", "time", "/ jit by hand", "memory"], rows) + "\n")
    report.conclude(targets(found))
    if GPU:
        del found
        print(flush=True)
        too_large()


if __name__ == "__main__":
    main()

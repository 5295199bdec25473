"""One training step of a decoder-only transformer, in every form the benchmarks compare.

Twelve layers in a `lax.scan` with rematerialisation, computing in bfloat16 on float32 params, the
embedding tied to the output. Every form takes `(params, tokens)`, returns `(loss, new params)` and
computes the same numbers up to rounding.

    python benchmarks/transformer.py                    # memory, time and compile time
    python benchmarks/transformer.py --size large       # for an accelerator
    python benchmarks/transformer.py --rounds 0         # memory alone, which needs no quiet machine
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import sys
import time
from collections.abc import Callable
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

Params = dict[str, Any]
Step = Callable[[Params, jax.Array], tuple[jax.Array, Params]]
LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the model and its batch are."""

    width: int
    heads: int
    length: int
    vocabulary: int
    batch: int
    layers: int = 12


SIZES = {
    "tiny": Size(32, 2, 16, 128, 64, 4),
    "small": Size(128, 4, 64, 2048, 256),
    "medium": Size(256, 4, 128, 4096, 256),
    "large": Size(1024, 16, 512, 32_768, 256),
}


def make_params(size: Size) -> Params:
    """Float32 params; those of the layers are stacked in front."""
    d, n = size.width, size.layers
    shapes = {
        "qkv": (d, 3, size.heads, d // size.heads),
        "out": (size.heads, d // size.heads, d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
    }
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def normal(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(next(keys), shape) * 0.02

    layers = {name: normal((n, *shape)) for name, shape in shapes.items()}
    layers |= {"first": jnp.ones((n, d)), "second": jnp.ones((n, d))}
    return {
        "embedding": normal((size.vocabulary, d)),
        "positions": normal((size.length, d)),
        "layers": layers,
        "last": jnp.ones(d),
    }


def make_tokens(size: Size) -> jax.Array:
    """A batch: the inputs and, one further on, the targets."""
    shape = (size.batch, size.length + 1)
    return jax.random.randint(jax.random.key(1), shape, 0, size.vocabulary)


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def layer(x: jax.Array, own: Params) -> jax.Array:
    """Attention and a perceptron, each with a residual connection."""
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), own)
    q, k, v = jnp.einsum("btd,dchk->cbthk", normed(x, own["first"]), half["qkv"])
    scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, half["out"])
    return x + jax.nn.gelu(normed(x, own["second"]) @ half["up"]) @ half["down"]


def mean_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """The mean cross entropy of the next token."""
    embedding = params["embedding"].astype(jnp.bfloat16)
    x = embedding[tokens[:, :-1]] + params["positions"].astype(jnp.bfloat16)
    x, _ = lax.scan(jax.checkpoint(lambda x, own: (layer(x, own), None)), x, params["layers"])
    logits = (normed(x, params["last"]) @ embedding.T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def descend(params: Params, grads: Params) -> Params:
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


def unsharded(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
    loss, grads = jax.value_and_grad(mean_loss)(params, tokens)
    return loss, descend(params, grads)


def accumulated(shards: int) -> Step:
    """What one writes by hand to save memory: a scan over slices that adds up the gradients."""

    def step(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        def add(total: Any, part: Any) -> tuple[Any, None]:
            found = jax.value_and_grad(mean_loss)(params, part)
            return jax.tree.map(jnp.add, total, found), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = lax.scan(add, zero, tokens.reshape(shards, -1, tokens.shape[-1]))
        return loss / shards, descend(params, jax.tree.map(lambda grad: grad / shards, grads))

    return step


def sharded(params: Params, tokens: jax.Array, *, mesh: Any) -> tuple[jax.Array, Params]:
    """The step as it is written for many devices: autodiff sums the gradients over them."""

    def body(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        loss, grads = jax.value_and_grad(lambda p: lax.pmean(mean_loss(p, tokens), "data"))(params)
        return loss, descend(params, grads)

    split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    return split(params, tokens)


def summed(params: Params, tokens: jax.Array, *, mesh: Any) -> tuple[jax.Array, Params]:
    """The same with the gradients summed by hand, once they are there: `pvary`, then `psum`."""

    def body(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        own = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)
        loss, grads = lax.pmean(jax.value_and_grad(mean_loss)(own, tokens), "data")
        return loss, descend(params, grads)

    split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    return split(params, tokens)


def simulated(shards: int, at_once: int | str, step: Any = sharded) -> Any:
    return sw.simulate(step, mesh=sw.mesh(data=shards), at_once=at_once)


# --- the comparison


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


def forms(shards: list[int], at_once: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"unsharded": unsharded}
    for n in shards:
        found[f"scan by hand, {n} slices"] = accumulated(n)
        found[f"simulated, {n} shards, at_once=1"] = simulated(n, 1)
        found[f"simulated, {n} shards, at_once=auto"] = simulated(n, "auto")
        for k in at_once:
            found[f"simulated, {n} shards, at_once={k}"] = simulated(n, k)
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(description="A transformer's step, sharded and not.")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--shards", type=int, nargs="+", default=[64])
    parser.add_argument("--at-once", type=int, nargs="*", default=[], help="more rows")
    parser.add_argument("--rounds", type=int, default=5, help="steps timed per form; 0 for none")
    asked = parser.parse_args()
    size = SIZES[asked.size]
    args = (make_params(size), make_tokens(size))
    found = measure(forms(asked.shards, asked.at_once), args, asked.rounds)
    device = jax.devices()[0]
    print(report.machine(device.device_kind, jax.__version__) + f", size {asked.size}\n")
    header = ["step", "time", "/ unsharded", "temporaries", "/ unsharded", "trace", "compile"]
    print(report.table(header, rows(found)) + "\n")
    for n in asked.shards:
        print(f"{n} shards, auto: {simulated(n, 'auto').plan(*args)}")
    print()
    report.conclude(targets(found, asked.shards))
    losses = [one.loss for one in found.values() if one.times]
    if losses and max(losses) - min(losses) > 1e-2 * abs(losses[0]):
        raise SystemExit(f"the forms end at different losses: {losses}")


if __name__ == "__main__":
    main()

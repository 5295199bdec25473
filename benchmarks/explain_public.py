"""`sw.explain` of models in the styles of public code bases, on 64 and 512 devices.

    python3 benchmarks/explain_public.py          # from the root of the repository

A decoder with logical axes (MaxText), a Flax NNX model with sharding metadata, and a model of
Equinox modules whose arrays are sharded by name. `explain` is compared with compiling alone: trace,
lower and compile, in a process with that many virtual CPU devices. The optimised HLO of that
process is also the truth: its collectives are counted with a regular expression, and each is a row.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import report
from flax import nnx
from jax import P

import shardwise as sw

WITHIN = 1.5
"""What `explain` may take of the time of compiling alone, on 64 devices."""

MESHES = ({"data": 2, "fsdp": 8, "tensor": 4}, {"data": 4, "fsdp": 32, "tensor": 4})

BATCH, LENGTH, WIDTH, HIDDEN, HEADS, WORDS, LAYERS = 1024, 1024, 2048, 8192, 16, 32768, 8


@dataclasses.dataclass(frozen=True)
class Program:
    """A training step with its arguments as shapes, and their specs."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    specs: tuple[Any, ...]


TOKENS = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
BY_ROW = P(("data", "fsdp"))


def cross_entropy(logits: Any, tokens: Any) -> Any:
    """The mean loss of the next token."""
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def attention(q: Any, k: Any, v: Any) -> Any:
    """Causal attention over `batch, length, heads, features`."""
    scores = jnp.einsum("bqhf,bkhf->bhqk", q, k) / math.sqrt(q.shape[-1])
    allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jnp.einsum("bhqk,bkhf->bqhf", jax.nn.softmax(jnp.where(allowed, scores, -1e9)), v)


def adam_step(loss: Callable[..., Any]) -> tuple[Any, Callable[..., Any]]:
    """Return the optimizer and a training step."""
    optimizer = optax.adamw(1e-3)

    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return optimizer, step


def trained(params: Any, specs: Any, loss: Callable[..., Any]) -> Program:
    """Return the training step; the optimizer's state is sharded as the parameters are."""
    optimizer, step = adam_step(loss)
    state = jax.eval_shape(optimizer.init, params)
    of_state = optax.tree_map_params(
        optimizer, lambda _, spec: spec, state, specs, transform_non_params=lambda _: P()
    )
    return Program(step, (params, state, TOKENS), (specs, of_state, BY_ROW))


# --- a decoder with logical axes, a scan over layers, and remat

RULES = {
    "batch": ("data", "fsdp"), "vocab": "tensor", "embed": "fsdp", "mlp": "tensor",
    "heads": "tensor", "layers": None, "length": None, "kv": None, "activation_embed": "tensor",
}  # fmt: skip


def logical(*names: str) -> Any:
    return P(*(RULES[name] for name in names))


def constrain(x: Any, *names: str) -> Any:
    return jax.lax.with_sharding_constraint(x, logical(*names))


def decoder() -> Program:
    """As MaxText lays out its decoders: logical names for each array, rules for the mesh."""
    head = WIDTH // HEADS
    arrays = {
        "embedding": ((WORDS, WIDTH), ("vocab", "embed")),
        "query": ((LAYERS, WIDTH, HEADS, head), ("layers", "embed", "heads", "kv")),
        "key": ((LAYERS, WIDTH, HEADS, head), ("layers", "embed", "heads", "kv")),
        "value": ((LAYERS, WIDTH, HEADS, head), ("layers", "embed", "heads", "kv")),
        "out": ((LAYERS, HEADS, head, WIDTH), ("layers", "heads", "kv", "embed")),
        "wi_0": ((LAYERS, WIDTH, HIDDEN), ("layers", "embed", "mlp")),
        "wi_1": ((LAYERS, WIDTH, HIDDEN), ("layers", "embed", "mlp")),
        "wo": ((LAYERS, HIDDEN, WIDTH), ("layers", "mlp", "embed")),
        "scale": ((LAYERS, 2, WIDTH), ("layers", "length", "embed")),
    }

    def norm(x: Any, scale: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        x = constrain(x, "batch", "length", "activation_embed")
        h = norm(x, w["scale"][0])
        q, k, v = (jnp.einsum("bld,dhf->blhf", h, w[n]) for n in ("query", "key", "value"))
        q = constrain(q, "batch", "length", "heads", "kv")
        x = x + jnp.einsum("blhf,hfd->bld", attention(q, k, v), w["out"])
        h = norm(x, w["scale"][1])
        gate = constrain(jax.nn.silu(h @ w["wi_0"]) * (h @ w["wi_1"]), "batch", "length", "mlp")
        return constrain(x + gate @ w["wo"], "batch", "length", "activation_embed"), None

    def loss(params: Any, tokens: Any) -> Any:
        x = constrain(params["embedding"][tokens], "batch", "length", "activation_embed")
        layers = {name: array for name, array in params.items() if name != "embedding"}
        x, _ = jax.lax.scan(layer, x, layers)
        logits = constrain(x @ params["embedding"].T, "batch", "length", "vocab")
        return cross_entropy(logits, tokens)

    params = {n: jax.ShapeDtypeStruct(shape, jnp.float32) for n, (shape, _) in arrays.items()}
    return trained(params, {name: logical(*names) for name, (_, names) in arrays.items()}, loss)


# --- a Flax NNX model with sharding metadata


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        def linear(size: int, out: int, spec: tuple[str, ...]) -> nnx.Linear:
            kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), spec)
            return nnx.Linear(size, out, use_bias=False, kernel_init=kernel, rngs=rngs)

        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.qkv = linear(WIDTH, 3 * WIDTH, ("fsdp", "tensor"))
        self.out = linear(WIDTH, WIDTH, ("tensor", "fsdp"))
        self.up = linear(WIDTH, HIDDEN, ("fsdp", "tensor"))
        self.down = linear(HIDDEN, WIDTH, ("tensor", "fsdp"))

    def __call__(self, x: Any) -> Any:
        heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (a.reshape(heads) for a in jnp.split(self.qkv(self.norms[0](x)), 3, -1))
        x = x + self.out(attention(q, k, v).reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.norms[1](x))))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        init = nnx.with_partitioning(nnx.initializers.normal(), ("tensor", "fsdp"))
        self.embed = nnx.Embed(WORDS, WIDTH, embedding_init=init, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS // 2)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(x)


def flax_nnx() -> Program:
    """Layers in a list, as NNX examples have them, with the metadata's specs."""
    with _no_eager_sharding():
        graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))
    specs = nnx.to_pure_dict(nnx.get_partition_spec(state))
    specs = jax.tree.map(lambda s: s or P(), specs, is_leaf=lambda s: s is None or type(s) is P)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), nnx.to_pure_dict(state))

    def loss(params: Any, tokens: Any) -> Any:
        nnx.replace_by_pure_dict(state, params)
        return cross_entropy(nnx.merge(graph, state)(tokens), tokens)

    return trained(params, specs, loss)


def _no_eager_sharding() -> Any:
    """Newer versions of Flax shard while they initialise, which needs a mesh with devices."""
    use = getattr(nnx, "use_eager_sharding", None)
    return use(False) if use else contextlib.nullcontext()


# --- Equinox modules, arrays sharded by the names of their axes


def equinox_blocks() -> Program:
    """Blocks of Equinox' own layers, stacked and scanned; an axis name for each dimension."""

    class Layer(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.RMSNorm
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key: Any):
            keys = jax.random.split(key, 3)
            self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
            self.norm = eqx.nn.RMSNorm(WIDTH, use_bias=False)
            self.up = eqx.nn.Linear(WIDTH, HIDDEN, use_bias=False, key=keys[1])
            self.down = eqx.nn.Linear(HIDDEN, WIDTH, use_bias=False, key=keys[2])

        def __call__(self, x: Any) -> Any:
            h = jax.vmap(self.norm)(x)
            x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((LENGTH, LENGTH), bool)))
            return x + jax.vmap(lambda h: self.down(jax.nn.gelu(self.up(h))))(x)

    names = {
        "embedding": P("tensor", "fsdp"), "query_proj": P(None, "tensor", "fsdp"),
        "key_proj": P(None, "tensor", "fsdp"), "value_proj": P(None, "tensor", "fsdp"),
        "output_proj": P(None, "fsdp", "tensor"), "up": P(None, "tensor", "fsdp"),
        "down": P(None, "fsdp", "tensor"),
    }  # fmt: skip

    def make(key: Any) -> Any:
        layers = eqx.filter_vmap(Layer)(jax.random.split(key, LAYERS))
        return {"embedding": jnp.zeros((WORDS, WIDTH)), "layers": layers}

    model = eqx.filter_eval_shape(make, jax.random.key(0))
    params, static = eqx.partition(model, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def spec(path: Any, _: Any) -> Any:
        text = jax.tree_util.keystr(path)
        return next((spec for name, spec in names.items() if f"{name}" in text), P())

    def loss(params: Any, tokens: Any) -> Any:
        model = eqx.combine(params, static)
        arrays, rest = eqx.partition(model["layers"], eqx.is_array)

        def layer(x: Any, arrays: Any) -> tuple[Any, None]:
            return jax.vmap(eqx.combine(arrays, rest))(x), None

        x = model["embedding"][tokens]
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, arrays)
        return cross_entropy(x @ model["embedding"].T, tokens)

    return trained(params, jax.tree_util.tree_map_with_path(spec, params), loss)


PROGRAMS = {
    "decoder, logical axes": decoder,
    "Flax NNX, metadata": flax_nnx,
    "Equinox, by name": equinox_blocks,
}

# --- the comparison

COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\((.*)"
)
ARRAY = re.compile(r"([a-z]\w*?)(\d+)?\[([\d,]*)\]")
NAMES = {"psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce", "all_gather":
         "all-gather", "psum_scatter": "reduce-scatter", "all_to_all": "all-to-all",
         "ppermute": "collective-permute"}  # fmt: skip

Counts = dict[str, list[int]]
"""By HLO opcode: messages, and bytes of their results on one device."""


def counted(hlo: str) -> Counts:
    """Count the collectives of a module by its text."""
    found: Counts = collections.defaultdict(lambda: [0, 0])
    for line in hlo.splitlines():
        if match := COLLECTIVE.search(line):
            found[match[2]][0] += 1
            for _, bits, shape in ARRAY.findall(match[1]):
                size = math.prod(int(part) for part in shape.split(",") if part)
                found[match[2]][1] += size * int(bits or 8) // 8
    return dict(found)


def rows_of(found: sw.Report) -> Counts:
    """Count the rows of a report in the same way."""
    messages: dict[str, set[int]] = collections.defaultdict(set)
    sizes: dict[str, int] = collections.defaultdict(int)
    for use in found.collectives:
        messages[NAMES[use.name]].add(use.launch)
        sizes[NAMES[use.name]] += math.prod(use.result_shape or ()) * jnp.dtype(use.dtype).itemsize
    return {name: [len(messages[name]), sizes[name]] for name in messages}


def alone(name: str, sizes: dict[str, int]) -> None:
    """Compile a program for devices of this process; print seconds and counts."""
    program = PROGRAMS[name]()
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes),
                         axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))  # fmt: skip
    with jax.set_mesh(mesh):
        began = time.perf_counter()
        compiled = jax.jit(program.step, in_shardings=program.specs).lower(*program.args).compile()
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, counted(compiled.as_text() or "")]))


def in_child(name: str, sizes: dict[str, int]) -> tuple[float, Counts]:
    count = math.prod(sizes.values())
    flags = f"--xla_force_host_platform_device_count={count}"
    command = [sys.executable, __file__, name, json.dumps(sizes)]
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, counts = json.loads(done.stdout.splitlines()[-1])
    return seconds, counts


def main() -> None:
    figures, targets = [], []
    sw.explain(lambda x: x.sum(), TOKENS, mesh=sw.mesh(data=2), in_specs=P("data"))  # starts JAX
    for name, make in PROGRAMS.items():
        for sizes in MESHES:
            program, mesh = make(), sw.mesh(**sizes)
            began = time.perf_counter()
            found = sw.explain(program.step, *program.args, mesh=mesh, in_specs=program.specs)
            seconds = time.perf_counter() - began
            compiling, truth = in_child(name, sizes)
            devices = math.prod(sizes.values())
            alike = rows_of(found) == truth
            lines = sum(bool(use.where.file) for use in found.collectives)
            reasons = sum(use.why is not None for use in found.collectives)
            figures.append([
                name, str(devices), str(len(found.collectives)), str(lines), str(reasons),
                "the same" if alike else f"{rows_of(found)} not {truth}",
                f"{found.bytes_sent / 1e9:.2f} GB", f"{seconds:.1f} s", f"{compiling:.1f} s",
                f"{seconds / compiling:.2f} x",
            ])  # fmt: skip
            print(figures[-1], file=sys.stderr, flush=True)
            if devices == 64:
                targets.append(report.Target(f"explain / compile, {name}", seconds / compiling,
                                             WITHIN))  # fmt: skip
            targets.append(report.Target(f"rows as in the HLO, {name}, {devices}", float(alike),
                                         1.0, at_least=True))  # fmt: skip
    print(f"`python3 benchmarks/{Path(__file__).name}`. ", end="")
    print(report.machine(jax.devices()[0].device_kind, jax.__version__), end=".\n\n")
    header = ["model", "devices", "rows", "with a line", "with a reason", "HLO", "sent", "explain",
              "compile", "ratio"]  # fmt: skip
    print(report.table(header, figures), end="\n\n")
    report.conclude(targets)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        alone(sys.argv[1], json.loads(sys.argv[2]))
    else:
        main()

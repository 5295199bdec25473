"""Programs as data: a list of statements over registers, and how it reads as Python."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod
from textwrap import indent

Axes = frozenset[str]
NOWHERE: Axes = frozenset()


@dataclass(frozen=True)
class Register:
    """A value in the body, as one device sees it.

    Attributes:
        varying: The axes that its type varies over when JAX checks types.
        differs: The axes along which it may really differ; the type may promise less.
        bound: A bound of its magnitude, so that rounding errors stay small.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    varying: Axes = NOWHERE
    differs: Axes = NOWHERE
    bound: float = 1.0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def real(self) -> bool:
        return self.dtype == "float32"


@dataclass
class Block:
    """A function: parameters, statements, and what it returns as an expression."""

    name: str
    params: tuple[str, ...]
    statements: list[Statement] = field(default_factory=list)
    result: str = "()"

    def __str__(self) -> str:
        lines = [str(s) for s in self.statements] + [f"return {self.result}"]
        return f"def {self.name}({', '.join(self.params)}):\n" + indent("\n".join(lines), "    ")


@dataclass
class Statement:
    """`targets = expression`, after the functions that the expression calls."""

    targets: tuple[str, ...]
    expression: str
    blocks: tuple[Block, ...] = ()
    registers: tuple[Register, ...] = ()

    def __str__(self) -> str:
        parts = [str(block) for block in self.blocks]
        return "\n".join([*parts, f"{', '.join(self.targets)} = {self.expression}"])


Spec = tuple[tuple[str, ...], ...]
"""For each dimension the axes it is split over."""


@dataclass(frozen=True)
class Argument:
    """An argument of the program: its whole shape, and how it is split."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec


@dataclass
class Program:
    """A whole program and the way it is run."""

    mesh: dict[str, int]
    check_vma: bool
    arguments: list[Argument]
    body: Block
    outputs: list[tuple[str, Spec]]
    around: str = "plain"
    outside: bool = False
    at_once: int | str = 1
    jit: bool = False
    hangs: bool = False
    features: set[str] = dataclasses.field(default_factory=set)

    def code(self) -> str:
        """The program as Python: `program(*args, mesh)`, and `transform`, applied around it."""
        return "\n\n\n".join([HEADER, str(self.body), self._call(), self._transform()]) + "\n"

    def _call(self) -> str:
        names = ", ".join(a.name for a in self.arguments)
        ins = _tuple(spec_code(a.spec) for a in self.arguments)
        outs = _tuple(spec_code(spec) for _, spec in self.outputs)
        options = f"in_specs={ins}, out_specs={outs}, check_vma={self.check_vma}"
        run = f"jax.shard_map(body, mesh=mesh, {options})({names})"
        last = f"run({names})" if self.outside else f"transform(run)({names})"
        return (
            f"def program({names}, *, mesh):\n"
            f"    def run({names}):\n        return {run}\n\n    return {last}"
        )

    def _transform(self) -> str:
        """`jax.grad` and its like, as a function of a function."""
        smooth = tuple(k for k, a in enumerate(self.arguments) if a.dtype == "float32")
        return TRANSFORMS[self.around].format(smooth=smooth, count=len(self.arguments))

    def script(self) -> str:
        """A file that runs the program both ways and prints both results."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        args = "\n".join(f"    {argument_code(a, k)}," for k, a in enumerate(self.arguments))
        simulated = f"sw.simulate(program, mesh=sw.mesh({sizes}), at_once={self.at_once!r})"
        real = "functools.partial(program, mesh=real_mesh)"
        if self.outside:
            simulated, real = f"transform({simulated})", f"transform({real})"
        if self.jit:
            simulated = f"jax.jit({simulated})"
        return FOOTER.format(
            code=self.code(),
            args=args,
            names=tuple(self.mesh),
            shape=tuple(self.mesh.values()),
            rank=len(self.mesh),
            count=prod(self.mesh.values()),
            simulated=simulated,
            real=f"jax.jit({real})",
        )


def _tuple(parts) -> str:
    parts = list(parts)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def spec_code(spec: Spec) -> str:
    entries = [repr(axes[0] if len(axes) == 1 else axes) if axes else "None" for axes in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def argument_code(argument: Argument, seed: int) -> str:
    rng = f"np.random.default_rng({seed})"
    if argument.dtype == "float32":
        return f"np.asarray({rng}.uniform(-1, 1, {argument.shape}), np.float32)"
    return f"np.asarray({rng}.integers(0, 9, {argument.shape}), np.int32)"


HEADER = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P


@jax.custom_vjp
def bent(x):
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 0.5 + 0.1 * x,))


def vary(x, axis):
    known = jax.typeof(x).manual_axis_type.varying
    return x if axis in known else lax.pcast(x, axis, to="varying")


def digest(*values):
    weights = [jnp.linspace(0.5, 1.5, v.size).reshape(v.shape) for v in values]
    return jnp.stack([jnp.mean(v * w) for v, w in zip(values, weights, strict=True)])"""

# Linear: of an output that only seems replicated, each device would bend its own.
_LOSS = """\
    def loss(*args):
        outs = [out for out in run(*args) if out.dtype == jnp.float32]
        return jnp.sum(digest(*outs))

"""

TRANSFORMS = {
    "plain": "def transform(run):\n    return run",
    "jit": "def transform(run):\n    return jax.jit(run)",
    "remat": "def transform(run):\n"
    + _LOSS
    + "    return jax.value_and_grad(jax.checkpoint(loss), argnums={smooth})",
    "grad": "def transform(run):\n"
    + _LOSS
    + "    return jax.value_and_grad(loss, argnums={smooth})",
    "jvp": "def transform(run):\n"
    "    def pushed(*args):\n"
    "        own = [args[k] for k in {smooth}]\n\n"
    "        def smooth(*own):\n"
    "            rest = list(args)\n"
    "            for k, value in zip({smooth}, own, strict=True):\n"
    "                rest[k] = value\n"
    "            return [out for out in run(*rest) if out.dtype == jnp.float32]\n\n"
    "        return jax.jvp(smooth, own, [jnp.cos(3 * value) for value in own])\n\n"
    "    return pushed",
    "vmap": "def transform(run):\n"
    "    def twice(*args):\n"
    "        first = args[0]\n"
    "        mapped = jax.vmap(run, in_axes=(0,) + (None,) * ({count} - 1))\n"
    "        return mapped(jnp.stack([first, jnp.flip(first)]), *args[1:])\n\n"
    "    return twice",
}

FOOTER = """\
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

{code}

import shardwise as sw

args = (
{args}
)
devices = np.array(jax.devices()[:{count}]).reshape({shape})
auto = (jax.sharding.AxisType.Auto,) * {rank}
real_mesh = jax.sharding.Mesh(devices, {names}, axis_types=auto)
placed = jax.device_put(args, jax.sharding.NamedSharding(real_mesh, P()))
want = {real}(*placed)
got = {simulated}(*args)
for path, leaf in jax.tree_util.tree_leaves_with_path(want):
    print("real", jax.tree_util.keystr(path), np.asarray(leaf))
for path, leaf in jax.tree_util.tree_leaves_with_path(got):
    print("simulated", jax.tree_util.keystr(path), np.asarray(leaf))
"""

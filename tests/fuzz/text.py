"""The parts of a program's text that are the same in every program."""

from __future__ import annotations

NARROW = ("float16", "bfloat16")

HEADER = '''\
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

REAL = [False]


@jax.custom_vjp
def bent(x):
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 0.5 + 0.1 * x,))


@jax.custom_jvp
def leant(x):
    return jnp.tanh(x)


leant.defjvp(lambda primals, tangents: (jnp.tanh(primals[0]), 0.5 * tangents[0] * primals[0]))


def vary(x, axis):
    known = jax.typeof(x).manual_axis_type.varying
    return x if axis in known else lax.pcast(x, axis, to="varying")


def digest(*values):
    """A number for each of the values, to which every entry adds something else."""
    def number(v):
        weights = np.linspace(0.5, 1.5, v.size) / max(v.size, 1)
        return jnp.sum(v * weights.astype(v.dtype).reshape(v.shape))

    return jnp.stack([number(v) for v in values])


def resized(x, shape):
    """The entries of `x`, as often as they are needed."""
    size = int(np.prod(shape))
    flat = lax.concatenate([x.reshape(-1)] * -(-size // max(x.size, 1)), 0)
    return flat[:size].reshape(shape)


def ragged(operand, output, table, axis):
    """An exchange in which device `i` sends `table[i][j]` rows to device `j`."""
    table = jnp.array(table, jnp.int32)
    me = lax.axis_index(axis)
    starts = (jnp.cumsum(table, 1) - table).astype(jnp.int32)
    places = (jnp.cumsum(table, 0) - table).astype(jnp.int32)
    if not REAL[0]:
        at = (starts[me], table[me], places[me], table[:, me])
        return lax.ragged_all_to_all(operand, output, *at, axis_name=axis)
    # XLA on the CPU has no such exchange: by its definition, from everybody's operands.
    everything = lax.all_gather(operand, axis)
    for sender in range(len(table)):
        rows = jnp.arange(len(output)) - places[sender, me]
        source = everything[sender][jnp.clip(rows + starts[sender, me], 0, len(operand) - 1)]
        mine = (rows >= 0) & (rows < table[sender, me])
        output = jnp.where(mine.reshape(-1, *[1] * (output.ndim - 1)), source, output)
    return output


def named(run):
    """Something that looks at the other members of a batch."""
    def kept(out):
        return out - 0.5 * lax.pmean(out, "batch") if out.dtype == jnp.float32 else out

    return lambda *args: jax.tree.map(kept, run(*args))'''

# How a body becomes a function of whole arrays. The first argument of `held` is a ref.
CALLS = {
    "shard_map": """\
def program({names}, *, mesh):
    def run({names}):
        options = dict(in_specs={ins}, out_specs={outs}, check_vma={check})
        return jax.shard_map(body, mesh=mesh, **options)({names})

    return {last}""",
    "ref argument": """\
def held(cell, {rest}):
    first = cell[...]
    outs = body(first, {rest})
    cell[...] = 0.5 * jnp.flip(first) + lax.psum(jnp.sum(first), {held})
    return outs


def program({names}, *, mesh):
    def run({names}):
        options = dict(in_specs={ins}, out_specs={outs}, check_vma={check})
        cell = jax.new_ref({first})
        before = 2.0 * cell[...]
        outs = jax.shard_map(held, mesh=mesh, **options)(cell, {rest})
        return (*outs, before, cell[...])

    return {last}""",
    "static": """\
def program({names}, how, act=None, *, mesh):
    def run({names}):
        options = dict(in_specs={ins}, out_specs={outs}, check_vma={check})
        {first} = act(getattr(jnp, how)({first}))
        return jax.shard_map(body, mesh=mesh, **options)({names})

    return {last}""",
    "nested": """\
def program({names}, *, mesh):
    def outer({names}):
        options = dict(in_specs={inner_ins}, out_specs={inner_outs}, check_vma={check})
        return jax.shard_map(body, axis_names={inner_axes}, **options)({names})

    def run({names}):
        options = dict(in_specs={outer_ins}, out_specs={outer_outs}, check_vma={check})
        return jax.shard_map(outer, mesh=mesh, axis_names={{{axis!r}}}, **options)({names})

    return {last}""",
    "placed": """\
def program({names}):
    def run({names}):
        outs = jax.shard_map(body, out_specs={outs}, check_vma={check})({names})
        return jax.reshard(outs, {whole})

    return {last}""",
    "explicit": """\
def program({names}):
    def run({names}):
        args = jax.reshard(({names},), {ins})
        options = dict(in_specs={ins}, out_specs={outs}, check_vma={check})
        return jax.reshard(jax.shard_map(body, **options)(*args), {whole})

    return {last}""",
    "inferred": """\
def program({names}):
    def run({names}):
        args = jax.reshard(({names},), {ins})
        outs = jax.shard_map(body, out_specs={outs}, check_vma={check})(*args)
        return jax.reshard(outs, {whole})

    return {last}""",
}

EXPLICIT = ("explicit", "inferred", "placed")
"""Forms on a mesh with Explicit axes, which is around them."""

STATIC = {"how": "tanh", "act": "jnp.cos"}
"""What the form `static` is called with besides arrays."""

# Linear in the outputs: of one that only seems replicated, each device would bend its own.
LOSS = """\
    def floats(outs):
        floats = [o for o in outs if jnp.issubdtype(o.dtype, jnp.floating)]
        # A type without a zero has no tangents.
        return [o.astype(jnp.float32) for o in floats if o.dtype != jnp.float8_e8m0fnu]

    def loss(*args):
        return jnp.sum(digest(*floats(run(*args))))

    def of_some(args, which):
        \"\"\"The float results as a function of some of the arguments, and those arguments.\"\"\"
        def smooth(*own):
            rest = list(args)
            for k, value in zip(which, own, strict=True):
                rest[k] = value
            return floats(run(*rest))

        return smooth, [args[k] for k in which]

    def directions(values):
        return [jnp.cos(3 * value) for value in values]

"""

_TWICE = """\
    def twice(*args):
        first = args[0]
        mapped = jax.vmap({0}, in_axes=(0,) + (None,) * ({{count}} - 1){1})
        return mapped(jnp.stack([first, jnp.flip(first)]), *args[1:])

    return twice"""

# `run` is the program; each entry ends by returning another function of the same arguments.
TRANSFORMS = {
    "plain": "    return run",
    "jit": "    return jax.jit(run)",
    "grad": "    return jax.value_and_grad(loss, argnums={smooth})",
    "remat": "    return jax.value_and_grad(jax.checkpoint(loss), argnums={smooth})",
    "vmap": _TWICE.format("run", ""),
    "named vmap": _TWICE.format("run", ', axis_name="batch"'),
    "vmap of grad": _TWICE.format("jax.grad(loss, argnums={smooth})", ""),
    "grad of vmap": """\
    def both(*args):
        mapped = jax.vmap(loss, in_axes=(0,) + (None,) * ({count} - 1))
        return jnp.sum(mapped(jnp.stack([args[0], jnp.flip(args[0])]), *args[1:]))

    return jax.grad(both, argnums={smooth})""",
    "jvp": """\
    def pushed(*args):
        smooth, own = of_some(args, {smooth})
        return jax.jvp(smooth, own, directions(own))

    return pushed""",
    "vjp": """\
    def pulled(*args):
        smooth, own = of_some(args, {smooth})
        outs, pull = jax.vjp(smooth, *own)
        weights = [np.linspace(0.5, 1.5, o.size, dtype=o.dtype).reshape(o.shape) for o in outs]
        return outs, pull(weights)

    return pulled""",
    "linearize": """\
    def straightened(*args):
        smooth, own = of_some(args, {smooth})
        outs, push = jax.linearize(smooth, *own)
        return outs, push(*directions(own)), push(*own)

    return straightened""",
    "jacfwd": """\
    def jacobian(*args):
        smooth, own = of_some(args, {first})
        return jax.jacfwd(smooth)(*own)

    return jacobian""",
    "jacrev": """\
    def jacobian(*args):
        smooth, own = of_some(args, {first})
        return jax.jacrev(lambda *own: digest(*smooth(*own)))(*own)

    return jacobian""",
    "hessian": """\
    def curvature(*args):
        smooth, own = of_some(args, {first})
        return jax.hessian(lambda *own: jnp.sum(digest(*smooth(*own))))(*own)

    return curvature""",
    "refs": """\
    def kept(*args):
        cells = [jax.new_ref(arg) for arg in args]
        first = run(*[cell[...] for cell in cells])
        cells[0][...] = 0.5 * cells[0][...] + 0.1
        second = run(*[cell[...] for cell in cells])
        total = jax.new_ref(jnp.sum(digest(*floats(first))))
        total[...] = total[...] + jnp.sum(digest(*floats(second)))
        return first, second, cells[0][...], jax.freeze(total)

    return kept""",
}

# Arguments, made by NumPy: nothing is compiled for them. All but the first kind are computed
# without rounding.
_RNG = "np.random.default_rng({seed})"
_ARRAY = "jnp.asarray({0}.astype(jnp.dtype('{{dtype}}')))"
_CHOICE = _ARRAY.format(f"np.asarray({_RNG}.choice(CHOICES, {{shape}}))")
VALUES = {
    "uniform": _ARRAY.format(f"np.asarray({_RNG}.uniform(-1, 1, {{shape}}))"),
    "counts": f"np.asarray({_RNG}.integers(0, 9, {{shape}}), np.int32)",
    "special": _CHOICE.replace("CHOICES", "[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.0]"),
    "zeros": _CHOICE.replace("CHOICES", "[0.0, -0.0]"),
    "small": _CHOICE.replace("CHOICES", "[0.0, 1.0, -1.0, 2.0, 0.5, -3.0]"),
    "powers": _CHOICE.replace("CHOICES", "[0.5, 1.0, 2.0, 4.0]"),
    "large": _CHOICE.replace("CHOICES", "[60000.0, -60000.0, 2048.0, 1.0, 3.0]"),
    "complex": _ARRAY.format(f"np.tensordot([1, 1j], {_RNG}.integers(-3, 4, (2, *{{shape}})), 1)"),
    "bits": _ARRAY.format(f"np.asarray({_RNG}.integers(-(2**31), 2**31, {{shape}}))"),
    "truths": _ARRAY.format(f"np.asarray({_RNG}.integers(0, 2, {{shape}}))"),
    "scalar": "{seed} + 0.5",
    "key": "jax.random.wrap_key_data("
    + f"{_RNG}.integers(0, 2**32, (*{{shape}}, {{words}}), np.uint32), impl='{{dtype}}')",
}

FOOTER = """\
import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

{code}

import contextlib
from math import prod

from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

import shardwise as sw

{x64}args = (
{args}
)
sizes, types = {sizes}, (AxisType.{type},) * {rank}
devices = np.array(jax.devices()[: prod(sizes.values())]).reshape(tuple(sizes.values()))
mesh = Mesh(devices, tuple(sizes), axis_types=types)
virtual = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
specs = {specs}
placed = [
    a if isinstance(a, float) else jax.device_put(a, NamedSharding(mesh, spec))
    for a, spec in zip(args, specs)
]
real = {real}
simulated = {simulated}
if {outside}:
    simulated, real = transform(simulated), transform(jax.jit(real))
REAL[0] = True
with {around}:
    want = jax.jit(real)(*placed)
REAL[0] = False
got = (jax.jit(simulated) if {jit} else simulated)(*args)
for name, result in (("real", want), ("simulated", got)):
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        print(name, jax.tree_util.keystr(path), jax.typeof(leaf), leaf)
"""

"""JAX's error messages about meshes and specs, and their explanations.

`REWORDINGS` has those with a single meaning; the other patterns are for messages that
`_engine.misuse` has to interpret.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import jax

from .._base.errors import (
    ArgumentError,
    ShardingError,
    ShardwiseError,
    UnsupportedError,
    text_of,
)

INDIVISIBLE = re.compile(
    r"maps array axis (?P<dim>\d+) \(of size (?P<size>\d+)\) to mesh ax[ei]s "
    r"(?P<axes>.+?) \(of (?:total )?size (?P<n>\d+)\)"
)
"""One bullet of JAX's message about a dimension that does not divide."""

INDIVISIBLE_ARGUMENT = re.compile(
    r"the passed (?P<argument>\S+) of shape (?P<shape>\w+\[[\d,]*\])"
    r"(?:, where [^\n]*?parameter '(?P<name>\w+)')?"
)
"""The start of such a bullet: the argument."""

UNBOUND_AXIS = re.compile(r"unbound axis name:? '?(?P<axis>\w+)'?")
"""JAX's message about a collective over an unknown axis."""

STATELESS_AXES = re.compile(r"can only accept axis_name .* axes: \((?P<axes>[^)]*)\)", re.S)
"""JAX's message about a reduction over several axes, one of them unknown."""

MIXED_AXES = re.compile(
    r"jax\.lax\.(?P<name>\w+) can only accept .*"
    r"input type: (?P<type>\w+\[[\d, ]*\])\{V:(?P<varying>[^}]*)\}",
    re.S,
)
"""JAX's message about a reduction over axes along some of which its value is the same."""

SPEC_AXIS = re.compile(r"(?:refers to '|Resource axis: )(?P<axis>\w+)")
"""JAX's message about a spec that names an axis the mesh lacks."""

SPEC_COUNT = re.compile(r"pytree structure error.*shard_map (?P<specs>in_specs|out_specs)", re.S)
"""JAX's message about specs that do not match the arguments or results."""

SPEC_MISMATCH = re.compile(
    r"in_specs passed to shard_map: (?P<declared>.+?) does not match the specs of the input: "
    r"(?P<actual>.+?) for arg: (?P<arg>.+?)\.(?:\s|$)",
    re.S,
)
"""JAX's message about an argument that is sharded, on an explicit mesh, differently from its
spec."""

SPEC_TOO_LONG = re.compile(
    r"is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but the passed (?P<path>\S+?),"
    r"(?: where [^\n]*?parameter '(?P<name>\w+)',)?[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])"
)
"""One bullet of JAX's message about a spec with more entries than an argument has dimensions."""


@dataclasses.dataclass(frozen=True)
class Rewording:
    """A message of JAX with a single meaning: the problem, the rule and the remedy.

    These are formatted with the groups of the pattern, and with `text`, the first line of the
    message.
    """

    pattern: str
    problem: str
    rule: str
    remedy: str
    kind: type[ShardwiseError] = ShardingError
    outside: bool = False
    """Whether it applies only outside a `shard_map`: inside, the program fails on devices too."""
    direct: bool = False
    """Whether it applies only to errors raised by `shard_map` itself."""


_ARRAYS_ONLY = "A function that is traced returns arrays: one, or a pytree of them."

REWORDINGS = (
    Rewording(
        r"non-canonical constant of type \w+: (?P<value>\S+)",
        "{value}, a Python number, is passed to a derivative of a shard_map, as a value or as a "
        "tangent",
        "JAX requires arrays there while it traces, under jax.jit too.",
        "jnp.asarray({value})",
        UnsupportedError,
    ),
    Rewording(
        r"AbstractMesh does not implement|not implemented for `jax.sharding.AbstractMesh`"
        r"|`get_mesh` can only be used outside",
        "this needs the devices of the mesh ({text})",
        "The program is traced, not run, on a mesh that has only names and sizes.",
        "use mesh.shape and mesh.size, jax.set_mesh(mesh) to set the ambient mesh, and "
        "jax.sharding.get_abstract_mesh() to read it; create arrays and compile outside the "
        "function.",
        UnsupportedError,
    ),
    Rewording(
        r"requires a non-empty mesh in context|Please set a mesh via `jax.set_mesh`"
        r"|PartitionSpec when you are not under a mesh"
        r"|specifying PartitionSpec to `ShapeDtypeStruct`",
        "a PartitionSpec is passed here, and there is no ambient mesh",
        "A spec names axes of the ambient mesh. A function that takes mesh= has no ambient mesh "
        "unless it sets one.",
        "jax.NamedSharding(mesh, spec) instead of the spec, or with jax.set_mesh(mesh): around "
        "this.",
    ),
    Rewording(
        r"Cannot apply JAX transformations to a function lowered and compiled"
        r"|only AbstractMesh exists in a jitted computation|untyped custom call to xla.sdy",
        "this lowers or compiles a program, or calls the result of .lower(...).compile()",
        "The function is traced for meshes without devices: nothing can be compiled for them, and "
        "compiled programs cannot be traced.",
        "call the jitted function itself here; lower and compile it outside, for a real mesh.",
        UnsupportedError,
    ),
    Rewording(
        r"[Tt]he '?(?P<name>\w+)(?:\(\)|') (?:attribute|method) (?:is not available|was called) on",
        "this uses {name} of an array while the function is traced",
        "While a function is traced, its arrays have types, but no values and no devices.",
        "use {name} of the result of the simulated function; inside, jax.typeof(x) is the type, "
        "and jax.block_until_ready(x) is allowed.",
        UnsupportedError,
        outside=True,
    ),
    Rewording(
        r"Non-hashable static arguments.*Tracer",
        "an argument that is static in a jit is traced here",
        "The whole function is traced with all arguments that are not declared static, numbers "
        "included.",
        "declare it here too: static_argnums=(1,) or static_argnames=(...), which sw.simulate, "
        "sw.check and sw.explain take as jax.jit does.",
        ArgumentError,
    ),
    Rewording(
        r"returned a value of type (?:<class ')?(?P<kind>.+?)(?:'>)?(?: at .+?)?, which is not a "
        r"valid JAX",
        "the function returns something of type {kind}",
        _ARRAYS_ONLY,
        "return arrays only, and compute the rest outside the function.",
        ArgumentError,
    ),
    Rewording(
        r"type <class '(?P<kind>[^']+)'> (?:as an abstract|is not a valid JAX"
        r"|cannot be interpreted)",
        "this shard_map is given something of type {kind}",
        "A shard_map takes arrays, or pytrees of them, and splits them over the mesh.",
        "pass arrays, in the order of in_specs; let the body close over other values.",
        ArgumentError,
        direct=True,
    ),
    Rewording(
        r"context mesh \S.*?\bManual\b.*? should match the mesh passed to shard_map",
        "this shard_map is nested in another one and passes a mesh",
        "Inside a shard_map the ambient mesh is partly manual, and an inner shard_map runs over "
        "that mesh.",
        "leave mesh= out of the inner one: jax.shard_map(body, in_specs=..., out_specs=..., "
        "axis_names={{...}}).",
    ),
    Rewording(
        r"context mesh .* should match the mesh passed to shard_map",
        "this shard_map is bound to a different mesh: the one it was created with, or that of its "
        "first call",
        "A jax.shard_map keeps the mesh it was created with; without one, it keeps that of its "
        "first call.",
        "create it inside the function, on the mesh that is passed: "
        "jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...). check and prove need such a "
        "function; simulate, explain and inspect take a program on its own mesh without mesh=.",
    ),
    Rewording(
        r"should match the aval mesh AbstractMesh\((?P<sizes>.*?), axis_types.* "
        r"for shape (?P<type>\w+\[\S*?\])",
        "an array {type} that the program closes over is sharded over a different mesh ({sizes})",
        "Along Explicit axes the mesh is part of an array's type. The spec of an argument is "
        "applied to the mesh that the program runs on; a closed-over array keeps its mesh.",
        "pass it to the program as an argument.",
    ),
    Rewording(
        r"in_specs argument must be a pytree of .* but it was `None` when.* are of type",
        "this shard_map has no in_specs, and the axes of its mesh are not Explicit",
        "JAX infers in_specs from the types of the arguments, which have a sharding only along "
        "Explicit axes. sw.mesh(...) and mesh={...} have Auto axes.",
        "write in_specs=; or pass a mesh with Explicit axes, and the specs of the program's "
        "arguments: mesh=jax.sharding.AbstractMesh((8,), ('data',), "
        "axis_types=(jax.sharding.AxisType.Explicit,)), in_specs=(...).",
    ),
    Rewording(
        r"context mesh cannot be empty",
        "this shard_map has no mesh, and there is no ambient mesh",
        "A shard_map runs over a mesh.",
        "pass one: mesh=sw.mesh(data=8).",
    ),
    Rewording(
        SPEC_MISMATCH.pattern,
        "in_specs of this shard_map have {declared}, and the argument is sharded as {actual} "
        "({arg})",
        "On a mesh with Explicit axes an argument must be sharded as in its spec; JAX does not "
        "reshard it.",
        "pass the specs of the program's arguments: sw.simulate(f, mesh=mesh, in_specs=...); or "
        "reshard this argument: jax.reshard(x, {declared}).",
    ),
    Rewording(
        r"PartitionSpec passed to (?P<name>\S+) cannot contain axis names that are of type Auto or "
        r"Manual\. Got PartitionSpec: (?P<spec>P\(.*?\)) with axis name: (?P<axis>\w+) "
        r"of type: (?:AxisType\.)?(?P<kind>\w+)",
        "{name} is given {spec}, and axis '{axis}' is {kind} here",
        "The sharding of an array is part of its type only along Explicit axes, and out_sharding= "
        "and jax.reshard change types.",
        "along Auto axes, use jax.lax.with_sharding_constraint(x, {spec}); along Manual ones, "
        "inside a shard_map, leave it out: each device has its part.",
    ),
    Rewording(
        r"spec=(?P<spec>P\([^\n]*?\))\) implies that array axis (?P<dim>\d+) is partitioned "
        r"(?P<n>\d+) times, but the dimension size is (?P<size>\d+)",
        "dimension {dim} of size {size} is split {n} ways by {spec}",
        "Every device gets an equal part.",
        "pad or trim the array, or choose a mesh that divides it.",
    ),
    Rewording(
        r"(?P<out>out_specs\S*) is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but "
        r"[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])",
        "{out} are {spec}, and the result for it is {shape}",
        "A spec has at most one entry for each dimension.",
        "add a dimension to the result of each device, x[None]; or reduce it over the axis "
        "(jax.lax.psum, pmean) and use P().",
    ),
    Rewording(
        r"(?P<out>out_specs\S*) is (?P<spec>P\(.*?\)) which implies.*?"
        r"(?:possibly varying over|replicated across mesh ax[ei]s) (?P<axes>\{[^}]*\}|[^,]*)",
        "{out} are {spec}, and the result for it may differ between devices along {axes}",
        "A result whose spec leaves an axis out is the same on every device along it.",
        "reduce it, or the values it is computed from, over the axis (jax.lax.psum, pmean, pmax); "
        "or name the axis in its spec. check_vma=False would disable this check and return the "
        "first device's value.",
    ),
)


def rewordings(error: Exception, text: str) -> Iterator[tuple[Rewording, dict[str, str]]]:
    """Yield the rewordings that match this text or the error's cause, and their format fields."""
    cause = "" if error.__cause__ is None else text_of(error.__cause__)
    for row in REWORDINGS:
        if match := re.search(row.pattern, f"{text} {cause}", re.S):
            groups = {name: str(value) for name, value in match.groupdict().items()}
            yield row, groups | {"text": text.partition("\n")[0]}


def about_results(frames: Iterable[FrameType]) -> str | None:
    """Return JAX's message about results that do not fit their specs, where JAX fails to raise it.

    JAX 0.12 fails in derivatives and batches of a `shard_map`: it pairs the specs of the function
    with the results of the transformed one, of which there are more.
    """
    for frame in frames:
        values = frame.f_locals
        if frame.f_code.co_name in ("_inout_vma_error", "_spec_rank_error"):
            specs = jax.tree.leaves(values.get("specs"), is_leaf=_is_spec)
            pairs = itertools.product(filter(_is_spec, specs), values.get("fails", ()))
            return next((message for pair in pairs if (message := _misfit(*pair))), None)
    return None


def _misfit(spec: Any, result: Any) -> str | None:
    """Return, as JAX would, why a result of this type, or with these varying axes, cannot have
    this spec."""
    if hasattr(result, "shape") and result.ndim <= len(spec):  # a batch has one more dimension
        return f"out_specs is {spec} which has length {len(spec)}, but a result has shape {result}"
    split_axes = {name for part in spec for name in _names(part)}
    axes = sorted(str(axis) for axis in getattr(result, "varying", ()) if axis not in split_axes)
    if not axes:
        return None
    axes_text = repr(axes[0]) if len(axes) == 1 else f"{{{','.join(axes)}}}"
    return f"out_specs is {spec} which implies that it is replicated across mesh axis {axes_text}"


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def _names(part: Any) -> tuple[Any, ...]:
    """Return the axes in an entry of a spec."""
    return part if isinstance(part, tuple) else () if part is None else (part,)


NO_DERIVATIVE = re.compile(r"Differentiation rule for '(?P<name>pmax|pmin)' not implemented")
"""JAX's message about the derivative of a maximum or minimum over devices."""


class RefusedError(ValueError):
    """An error whose arguments are the problem, the rule and the remedy."""


def is_about_types(error: Exception) -> bool:
    """Return whether JAX rejects how arrays are sharded on an explicit mesh."""
    if type(error).__name__ == "ShardingTypeError":
        return True
    return bool(
        SPEC_MISMATCH.search(" ".join(map(text_of, filter(None, (error, error.__cause__)))))
    )

"""JAX's error messages about meshes and specs, and what they mean.

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
    r"in_specs passed to shard_map: (?P<said>.+?) does not match the specs of the input: "
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
    """A message of JAX with a single meaning: what was found, the rule and the remedy.

    These are formatted with the groups of the pattern, and with `text`, the first line of the
    message.
    """

    pattern: str
    problem: str
    rule: str
    remedy: str
    kind: type[ShardwiseError] = ShardingError
    outside: bool = False
    """Whether it is no error of the program inside a `shard_map`, where devices fail as well."""
    direct: bool = False
    """Whether it has to come from a `shard_map` itself."""


_ARRAYS_ONLY = "A function that is traced returns arrays: one, or a pytree of them."

REWORDINGS = (
    Rewording(
        r"non-canonical constant of type \w+: (?P<value>\S+)",
        "{value}, a number of Python's, is given to a derivative of a shard_map, as a value or as "
        "a tangent",
        "JAX takes arrays there while it traces, under jax.jit as well.",
        "jnp.asarray({value})",
        UnsupportedError,
    ),
    Rewording(
        r"AbstractMesh does not implement|not implemented for `jax.sharding.AbstractMesh`"
        r"|`get_mesh` can only be used outside",
        "this asks for the devices of the mesh ({text})",
        "The program is traced, not run, and sees the names and sizes of its mesh alone.",
        "use mesh.shape and mesh.size, jax.set_mesh(mesh) for a mesh around, and "
        "jax.sharding.get_abstract_mesh() to find it; make arrays and compile outside the "
        "function.",
        UnsupportedError,
    ),
    Rewording(
        r"requires a non-empty mesh in context|Please set a mesh via `jax.set_mesh`"
        r"|PartitionSpec when you are not under a mesh"
        r"|specifying PartitionSpec to `ShapeDtypeStruct`",
        "a PartitionSpec is given here, and there is no mesh around",
        "A spec names axes of the mesh around it. A function that takes mesh= gets its mesh, and "
        "has none around it unless it sets one.",
        "jax.NamedSharding(mesh, spec) in place of the spec, or with jax.set_mesh(mesh): around "
        "this.",
    ),
    Rewording(
        r"Cannot apply JAX transformations to a function lowered and compiled"
        r"|only AbstractMesh exists in a jitted computation|untyped custom call to xla.sdy",
        "this lowers or compiles a program, or calls what .lower(...).compile() gives",
        "The function is traced, for meshes that have no devices: nothing can be compiled for "
        "them, and what is compiled cannot be traced.",
        "call the jitted function itself here; lower and compile it outside, for a real mesh.",
        UnsupportedError,
    ),
    Rewording(
        r"[Tt]he '?(?P<name>\w+)(?:\(\)|') (?:attribute|method) (?:is not available|was called) on",
        "this asks an array for {name}, and the function is traced",
        "While a function is traced its arrays have types, but no values and no devices.",
        "ask the result of the simulated function for {name}; in here, jax.typeof(x) has the "
        "type, and jax.block_until_ready(x) may stand.",
        UnsupportedError,
        outside=True,
    ),
    Rewording(
        r"Non-hashable static arguments.*Tracer",
        "an argument that is static in a jit or pmap is traced here",
        "The whole function is traced, and with it every argument that is not said to be static: "
        "numbers, too.",
        "name it here as well: static_argnums=(1,) or static_argnames=(...), which sw.simulate, "
        "sw.check and sw.explain take as jax.jit does.",
        ArgumentError,
    ),
    Rewording(
        r"returned a value of type (?:<class ')?(?P<kind>.+?)(?:'>)?(?: at .+?)?, which is not a "
        r"valid JAX",
        "the function returns something of type {kind}",
        _ARRAYS_ONLY,
        "return what is computed, and keep the rest outside of the function.",
        ArgumentError,
    ),
    Rewording(
        r"type <class '(?P<kind>[^']+)'> (?:as an abstract|is not a valid JAX"
        r"|cannot be interpreted)",
        "this shard_map is given something of type {kind}",
        "A shard_map takes arrays, or pytrees of them: it splits them over the mesh.",
        "pass arrays, in the order of in_specs; what is no array, its body closes over.",
        ArgumentError,
        direct=True,
    ),
    Rewording(
        r"context mesh \S.*?\bManual\b.*? should match the mesh passed to shard_map",
        "this shard_map stands inside another one, and names a mesh of its own",
        "Inside a shard_map the mesh around is the one that is partly manual there, and an inner "
        "shard_map runs over that one.",
        "leave mesh= out of the inner one: jax.shard_map(body, in_specs=..., out_specs=..., "
        "axis_names={{...}}).",
    ),
    Rewording(
        r"context mesh .* should match the mesh passed to shard_map",
        "this shard_map is bound to another mesh than the one it is to run on: its own, or that of "
        "the first call",
        "A jax.shard_map keeps the mesh it was made with; one made without a mesh takes that of "
        "its first call for good.",
        "make it inside the function, on the mesh that is passed: "
        "jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...). check and prove need such a "
        "function; simulate, explain and inspect take a program on its own mesh without mesh=.",
    ),
    Rewording(
        r"should match the aval mesh AbstractMesh\((?P<sizes>.*?), axis_types.* "
        r"for shape (?P<type>\w+\[\S*?\])",
        "an array {type} that the program closes over is sharded over another mesh ({sizes}) than "
        "the one it runs on",
        "Along Explicit axes the mesh is part of an array's type. The spec of an argument is "
        "applied to the mesh that the program runs on; a closed-over array keeps its mesh.",
        "pass it to the program as an argument.",
    ),
    Rewording(
        r"context mesh cannot be empty",
        "this shard_map has no mesh, and there is none around it",
        "A shard_map runs over a mesh.",
        "name one: mesh=sw.mesh(data=8).",
    ),
    Rewording(
        SPEC_MISMATCH.pattern,
        "in_specs of this shard_map have {said}, and the argument is sharded as {actual} ({arg})",
        "On a mesh with Explicit axes an argument must be sharded as in its spec; JAX does not "
        "reshard it.",
        "give the specs of the program's arguments: sw.simulate(f, mesh=mesh, in_specs=...); or "
        "reshard this argument: jax.reshard(x, {said}).",
    ),
    Rewording(
        r"PartitionSpec passed to (?P<name>\S+) cannot contain axis names that are of type Auto or "
        r"Manual\. Got PartitionSpec: (?P<spec>P\(.*?\)) with axis name: (?P<axis>\w+) "
        r"of type: (?:AxisType\.)?(?P<kind>\w+)",
        "{name} is given {spec}, and axis '{axis}' is {kind} here",
        "The sharding of an array is part of its type along Explicit axes alone, and out_sharding= "
        "and jax.reshard change types.",
        "along Auto axes, jax.lax.with_sharding_constraint(x, {spec}); along Manual ones, inside "
        "a shard_map, leave it out: each device holds its own part.",
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
        "{out} say {spec}, and what is returned for it is {shape}",
        "A spec has at most one entry for each dimension.",
        "give what each device returns a dimension, x[None]; or reduce it over the axis "
        "(jax.lax.psum, pmean) and say P().",
    ),
    Rewording(
        r"(?P<out>out_specs\S*) is (?P<spec>P\(.*?\)) which implies.*?"
        r"(?:possibly varying over|replicated across mesh ax[ei]s) (?P<axes>\{[^}]*\}|[^,]*)",
        "{out} say {spec}, and what is returned for it may differ between devices along {axes}",
        "A result whose spec leaves an axis out is the same on every device along it.",
        "reduce it over the axis before it is returned (jax.lax.psum, pmean, pmax), or what it is "
        "made of; or name the axis in its spec. check_vma=False would silence this, and return "
        "the first device's value.",
    ),
)


def rewordings(error: Exception, text: str) -> Iterator[tuple[Rewording, dict[str, str]]]:
    """Yield the rewordings of an error of this text, or its cause, and what to format them with."""
    cause = "" if error.__cause__ is None else text_of(error.__cause__)
    for row in REWORDINGS:
        if match := re.search(row.pattern, f"{text} {cause}", re.S):
            groups = {name: str(value) for name, value in match.groupdict().items()}
            yield row, groups | {"text": text.partition("\n")[0]}


def about_results(frames: Iterable[FrameType]) -> str | None:
    """Return JAX's message about results that do not fit their specs, where JAX fails to raise it.

    JAX 0.12 fails in derivatives and batches of a `shard_map`: it pairs the specs of the function
    with its results, of which there are more then.
    """
    for frame in frames:
        values = frame.f_locals
        if frame.f_code.co_name in ("_inout_vma_error", "_spec_rank_error"):
            specs = jax.tree.leaves(values.get("specs"), is_leaf=_is_spec)
            pairs = itertools.product(filter(_is_spec, specs), values.get("fails", ()))
            return next((message for pair in pairs if (message := _misfit(*pair))), None)
    return None


def _misfit(spec: Any, found: Any) -> str | None:
    """Return, as JAX would, why a result of this type, or one that differs so, cannot have this
    spec."""
    if hasattr(found, "shape") and found.ndim <= len(spec):  # a batch has a dimension more
        return f"out_specs is {spec} which has length {len(spec)}, but a result has shape {found}"
    split_axes = {name for part in spec for name in _names(part)}
    axes = sorted(str(axis) for axis in getattr(found, "varying", ()) if axis not in split_axes)
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
"""JAX's message where a maximum or minimum over devices is differentiated."""


UNNAMED = "_internal_pmap_axis_name"
"""JAX's name for the axis of a `pmap` without a name."""


UNMAPPED = (
    "this pmap maps over a dimension that an argument does not have",
    "There is one part of a mapped array for each device.",
    "give it an array with one entry per device, or say in_axes=(0, None) of what every device "
    "takes whole.",
)
"""What was found, the rule and the remedy."""


class RefusedError(ValueError):
    """An error with its parts: what was found, the rule and the remedy."""


def is_about_types(error: Exception) -> bool:
    """Return whether JAX rejects how arrays are sharded on an explicit mesh."""
    if type(error).__name__ == "ShardingTypeError":
        return True
    return bool(
        SPEC_MISMATCH.search(" ".join(map(text_of, filter(None, (error, error.__cause__)))))
    )

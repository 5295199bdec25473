"""Errors of JAX that a user meets, read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from types import FrameType
from typing import Any

import jax

from .._base.errors import text_of

INDIVISIBLE = re.compile(
    r"maps array axis (?P<dim>\d+) \(of size (?P<size>\d+)\) to mesh ax[ei]s "
    r"(?P<axes>.+?) \(of (?:total )?size (?P<n>\d+)\)"
)
"""One bullet of JAX's message about a dimension that does not divide."""

INDIVISIBLE_ARGUMENT = re.compile(
    r"the passed (?P<argument>\S+) of shape (?P<shape>\w+\[[\d,]*\])"
    r"(?:, where [^\n]*?parameter '(?P<name>\w+)')?"
)
"""The start of such a bullet: which argument it is about."""

UNBOUND_AXIS = re.compile(r"unbound axis name:? '?(?P<axis>\w+)'?")
"""JAX's message about a collective over an axis that no mesh has."""

FROZEN_MESH = re.compile(r"context mesh .* should match the mesh passed to shard_map", re.S)
"""JAX's message when a `shard_map` object meets a second mesh."""

NESTED_MESH = re.compile(
    r"context mesh \S.*?\bManual\b.*? should match the mesh passed to shard_map", re.S
)
"""The same inside another `shard_map`, whose mesh is partly manual there."""

FOREIGN_MESH = re.compile(
    r"should match the aval mesh AbstractMesh\((?P<sizes>.*?), axis_types.* "
    r"for shape (?P<type>\w+\[\S*?\])",
    re.S,
)
"""JAX's message about an array whose type names another mesh than the one around."""

STATELESS_AXES = re.compile(r"can only accept axis_name .* axes: \((?P<axes>[^)]*)\)", re.S)
"""JAX's message about a reduction over several axes of which one is not there."""

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
    r"(?P<found>.+?) for arg: (?P<arg>.+?)\.(?:\s|$)",
    re.S,
)
"""JAX's message about an argument that lies, on an explicit mesh, otherwise than the spec says."""

NOT_REPLICATED = re.compile(
    r"(?P<out>out_specs\S*) is (?P<spec>P\(.*?\)) which implies.*?"
    r"(?:possibly varying over|replicated across mesh ax[ei]s) (?P<axes>\{[^}]*\}|[^,]*)",
    re.S,
)
"""JAX's message about a result that may differ where its spec says that it does not."""

NO_MESH = re.compile(r"context mesh cannot be empty")
"""JAX's message about a `shard_map` that has no mesh and finds none around it."""

SPEC_WITHOUT_MESH = re.compile(
    r"requires a non-empty mesh in context|Please set a mesh via `jax.set_mesh`"
    r"|PartitionSpec when you are not under a mesh|specifying PartitionSpec to `ShapeDtypeStruct`"
)
"""JAX's messages about a spec for `jit`, `device_put` and the like where no mesh is around."""

UNTYPED_AXIS = re.compile(
    r"PartitionSpec passed to (?P<name>\S+) cannot contain axis names that are of type Auto or "
    r"Manual\. Got PartitionSpec: (?P<spec>P\(.*?\)) with axis name: (?P<axis>\w+) "
    r"of type: (?:AxisType\.)?(?P<kind>\w+)"
)
"""JAX's message about a type that is to have a sharding along an axis that is not Explicit."""

UNEVEN_SHARDING = re.compile(
    r"spec=(?P<spec>P\(.*?\))\) implies that array axis (?P<dim>\d+) is partitioned (?P<n>\d+) "
    r"times, but the dimension size is (?P<size>\d+)"
)
"""JAX's message about a sharding that cuts an array into parts of different sizes."""


NO_DEVICES = re.compile(
    r"AbstractMesh does not implement|not implemented for `jax.sharding.AbstractMesh`"
    r"|`get_mesh` can only be used outside"
)
"""JAX's messages where a program asks a virtual mesh for what only devices have."""


COMPILED = re.compile(
    r"Cannot apply JAX transformations to a function lowered and compiled"
    r"|only AbstractMesh exists in a jitted computation|untyped custom call to xla.sdy"
)
"""JAX's messages where a program that is traced lowers or compiles one, or calls that."""

NO_VALUES = re.compile(
    r"[Tt]he '?(?P<name>\w+)(?:\(\)|') (?:attribute|method) (?:is not available|was called) on"
)
"""JAX's messages where what has no values yet is asked for what only arrays on devices have."""

NOT_AN_ARRAY = re.compile(
    r"returned a value of type (?P<kind>.+?)(?: at .+?)?, which is not a valid JAX"
)
"""JAX's message about a function that returns something that is no array."""

GIVEN_NO_ARRAY = re.compile(
    r"type <class '(?P<kind>[^']+)'> (?:as an abstract|is not a valid JAX|cannot be interpreted)"
)
"""JAX's message about something that is handed over as an array, and is none."""

SPEC_TOO_LONG = re.compile(
    r"is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but the passed (?P<path>\S+?),"
    r"(?: where [^\n]*?parameter '(?P<name>\w+)',)?[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])"
)
"""One bullet of JAX's message about a spec with more entries than an argument has dimensions."""


RESULT_TOO_FLAT = re.compile(
    r"(?P<out>out_specs\S*) is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but "
    r"[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])"
)
"""The same about a result."""


def about_results(frames: Iterable[FrameType]) -> str | None:
    """What JAX would say of results that do not fit their specs, where it fails to say it.

    0.12 does in derivatives and batches of a `shard_map`: it pairs the specs of the function with
    the results of these, which are more.
    """
    for frame in frames:
        values = frame.f_locals
        if frame.f_code.co_name in ("_inout_vma_error", "_spec_rank_error"):
            specs = jax.tree.leaves(values.get("specs"), is_leaf=_is_spec)
            pairs = itertools.product(filter(_is_spec, specs), values.get("fails", ()))
            return next((said for pair in pairs if (said := _misfit(*pair))), None)
    return None


def _misfit(spec: Any, found: Any) -> str | None:
    """In JAX's words, why a result of this type, or one that differs so, cannot have this spec."""
    if hasattr(found, "shape") and found.ndim <= len(spec):  # a batch has a dimension more
        return f"out_specs is {spec} which has length {len(spec)}, but a result has shape {found}"
    named = {name for part in spec for name in _names(part)}
    axes = sorted(str(axis) for axis in getattr(found, "varying", ()) if axis not in named)
    if not axes:
        return None
    over = repr(axes[0]) if len(axes) == 1 else f"{{{','.join(axes)}}}"
    return f"out_specs is {spec} which implies that it is replicated across mesh axis {over}"


def _is_spec(x: Any) -> bool:
    return isinstance(x, jax.sharding.PartitionSpec)


def _names(part: Any) -> tuple[Any, ...]:
    """The axes that an entry of a spec names."""
    return part if isinstance(part, tuple) else () if part is None else (part,)


PLAIN_NUMBER = re.compile(r"non-canonical constant of type (?P<kind>\w+): (?P<value>\S+)")
"""JAX's message where a number of Python's meets a derivative of a `shard_map` in a trace."""

TRACED_STATIC = re.compile(r"Non-hashable static arguments.*Tracer", re.S)
"""JAX's message where a static argument of a `jit` or `pmap` is a value that is being traced."""


NO_DERIVATIVE = re.compile(r"Differentiation rule for '(?P<name>pmax|pmin)' not implemented")
"""JAX's message where a maximum or minimum over devices is differentiated."""


UNNAMED = "_internal_pmap_axis_name"
"""What JAX calls the axis of a `pmap` that has no name."""


UNMAPPED = (
    "this pmap maps over a dimension that an argument does not have",
    "There is one part of a mapped array for each device.",
    "give it an array with one entry per device, or say in_axes=(0, None) of what every device "
    "takes whole.",
)
"""What was found, the rule and the remedy."""


class RefusedError(ValueError):
    """What cannot be run as it is: what was found, the rule and the remedy."""


def is_about_types(error: Exception) -> bool:
    """Whether JAX refuses the way arrays lie on an explicit mesh."""
    if type(error).__name__ == "ShardingTypeError":
        return True
    return bool(
        SPEC_MISMATCH.search(" ".join(map(text_of, filter(None, (error, error.__cause__)))))
    )

"""Patterns of JAX's error messages."""

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
"""The start of such a bullet: the argument."""

UNBOUND_AXIS = re.compile(r"unbound axis name:? '?(?P<axis>\w+)'?")
"""JAX's message about a collective over an unknown axis."""

FROZEN_MESH = re.compile(r"context mesh .* should match the mesh passed to shard_map", re.S)
"""JAX's message when a `shard_map` is called with a second mesh."""

NESTED_MESH = re.compile(
    r"context mesh \S.*?\bManual\b.*? should match the mesh passed to shard_map", re.S
)
"""The same inside another `shard_map`, whose mesh is partly manual."""

FOREIGN_MESH = re.compile(
    r"should match the aval mesh AbstractMesh\((?P<sizes>.*?), axis_types.* "
    r"for shape (?P<type>\w+\[\S*?\])",
    re.S,
)
"""JAX's message about an array whose type names another mesh than the one around."""

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
    r"(?P<found>.+?) for arg: (?P<arg>.+?)\.(?:\s|$)",
    re.S,
)
"""JAX's message about an argument that is sharded, on an explicit mesh, differently from its
spec."""

NOT_REPLICATED = re.compile(
    r"(?P<out>out_specs\S*) is (?P<spec>P\(.*?\)) which implies.*?"
    r"(?:possibly varying over|replicated across mesh ax[ei]s) (?P<axes>\{[^}]*\}|[^,]*)",
    re.S,
)
"""JAX's message about a result that may differ although its spec declares it equal."""

NO_MESH = re.compile(r"context mesh cannot be empty")
"""JAX's message about a `shard_map` without a mesh, and without an ambient mesh."""

SPEC_WITHOUT_MESH = re.compile(
    r"requires a non-empty mesh in context|Please set a mesh via `jax.set_mesh`"
    r"|PartitionSpec when you are not under a mesh|specifying PartitionSpec to `ShapeDtypeStruct`"
)
"""JAX's messages about a spec for `jit`, `device_put` and the like without an ambient mesh."""

UNTYPED_AXIS = re.compile(
    r"PartitionSpec passed to (?P<name>\S+) cannot contain axis names that are of type Auto or "
    r"Manual\. Got PartitionSpec: (?P<spec>P\(.*?\)) with axis name: (?P<axis>\w+) "
    r"of type: (?:AxisType\.)?(?P<kind>\w+)"
)
"""JAX's message about a type with a sharding along an axis that is not Explicit."""

UNEVEN_SHARDING = re.compile(
    r"spec=(?P<spec>P\(.*?\))\) implies that array axis (?P<dim>\d+) is partitioned (?P<n>\d+) "
    r"times, but the dimension size is (?P<size>\d+)"
)
"""JAX's message about a sharding that splits an array into parts of different sizes."""


NO_DEVICES = re.compile(
    r"AbstractMesh does not implement|not implemented for `jax.sharding.AbstractMesh`"
    r"|`get_mesh` can only be used outside"
)
"""JAX's messages where a program accesses the devices of a virtual mesh."""


COMPILED = re.compile(
    r"Cannot apply JAX transformations to a function lowered and compiled"
    r"|only AbstractMesh exists in a jitted computation|untyped custom call to xla.sdy"
)
"""JAX's messages where a traced program lowers, compiles, or calls a compiled program."""

NO_VALUES = re.compile(
    r"[Tt]he '?(?P<name>\w+)(?:\(\)|') (?:attribute|method) (?:is not available|was called) on"
)
"""JAX's messages where a program accesses what only concrete arrays have."""

NOT_AN_ARRAY = re.compile(
    r"returned a value of type (?P<kind>.+?)(?: at .+?)?, which is not a valid JAX"
)
"""JAX's message about a function that returns something that is not an array."""

GIVEN_NO_ARRAY = re.compile(
    r"type <class '(?P<kind>[^']+)'> (?:as an abstract|is not a valid JAX|cannot be interpreted)"
)
"""JAX's message about an argument that is not an array."""

SPEC_TOO_LONG = re.compile(
    r"is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but the passed (?P<path>\S+?),"
    r"(?: where [^\n]*?parameter '(?P<name>\w+)',)?[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])"
)
"""One bullet of JAX's message about a spec with more entries than an argument has dimensions."""


RESULT_TOO_FLAT = re.compile(
    r"(?P<out>out_specs\S*) is (?P<spec>P\([^\n]*?\)) which has length (?P<length>\d+), but "
    r"[^\n]*? has shape (?P<shape>\w+\[[\d,]*\])"
)
"""The same for a result."""


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


PLAIN_NUMBER = re.compile(r"non-canonical constant of type (?P<kind>\w+): (?P<value>\S+)")
"""JAX's message where a Python number is passed to a derivative of a `shard_map` in a trace."""

TRACED_STATIC = re.compile(r"Non-hashable static arguments.*Tracer", re.S)
"""JAX's message where a static argument of a `jit` or `pmap` is a traced value."""


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

"""Errors of JAX with a single meaning: what was found, the rule and the remedy."""

from __future__ import annotations

from ... import _jax

SENTENCES = (
    (
        _jax.NESTED_MESH,
        "this shard_map stands inside another one, and names a mesh of its own",
        "Inside a shard_map the mesh around is the one that is partly manual there, and an inner "
        "shard_map runs over that one.",
        "leave mesh= out of the inner one: jax.shard_map(body, in_specs=..., out_specs=..., "
        "axis_names={{...}}).",
    ),
    (
        _jax.FROZEN_MESH,
        "this shard_map is bound to another mesh than the one it is to run on: its own, or "
        "that of the first call",
        "A jax.shard_map keeps the mesh it was made with; one made without a mesh takes "
        "that of its first call for good.",
        "make it inside the function, on the mesh that is passed: "
        "jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...). check and prove need such a "
        "function; simulate, explain and inspect take a program on its own mesh without mesh=.",
    ),
    (
        _jax.FOREIGN_MESH,
        "an array {type} that the program closes over is sharded over another mesh ({sizes}) than "
        "the one it runs on",
        "Along Explicit axes the mesh is part of an array's type. The spec of an argument is "
        "applied to the mesh that the program runs on; a closed-over array keeps its mesh.",
        "pass it to the program as an argument.",
    ),
    (
        _jax.NO_MESH,
        "this shard_map has no mesh, and there is none around it",
        "A shard_map runs over a mesh.",
        "name one: mesh=sw.mesh(data=8).",
    ),
    (
        _jax.SPEC_MISMATCH,
        "in_specs of this shard_map have {said}, and the argument is sharded as {found} ({arg})",
        "On a mesh with Explicit axes an argument must be sharded as in its spec; JAX does not "
        "reshard it.",
        "give the specs of the program's arguments: sw.simulate(f, mesh=mesh, in_specs=...); or "
        "reshard this argument: jax.reshard(x, {said}).",
    ),
    (
        _jax.UNTYPED_AXIS,
        "{name} is given {spec}, and axis '{axis}' is {kind} here",
        "The sharding of an array is part of its type along Explicit axes alone, and out_sharding= "
        "and jax.reshard change types.",
        "along Auto axes, jax.lax.with_sharding_constraint(x, {spec}); along Manual ones, inside "
        "a shard_map, leave it out: each device holds its own part.",
    ),
    (
        _jax.UNEVEN_SHARDING,
        "dimension {dim} of size {size} is split {n} ways by {spec}",
        "Every device gets an equal part.",
        "pad or trim the array, or choose a mesh that divides it.",
    ),
    (
        _jax.RESULT_TOO_FLAT,
        "{out} say {spec}, and what is returned for it is {shape}",
        "A spec has at most one entry for each dimension.",
        "give what each device returns a dimension, x[None]; or reduce it over the axis "
        "(jax.lax.psum, pmean) and say P().",
    ),
    (
        _jax.NOT_REPLICATED,
        "{out} say {spec}, and what is returned for it may differ between devices along {axes}",
        "A result whose spec leaves an axis out is the same on every device along it.",
        "reduce it over the axis before it is returned (jax.lax.psum, pmean, pmax), or what it is "
        "made of; or name the axis in its spec. check_vma=False would silence this, and return "
        "the first device's value.",
    ),
)
"""A pattern of JAX's message; what was found, the rule, the remedy, formatted with its groups."""

TILED = "tiled=True; and "
"""The first words of a remedy, dropped if `tiled=True` was passed."""

_DIVIDES = (
    "pad or trim the dimension to a multiple of the number of devices along the axis, or name "
    "another one."
)

COLLECTIVES = {
    "psum_scatter": (
        "Each device keeps one of as many parts of scatter_dimension as there are devices along "
        "the axis: equal ones with tiled=True, and else single entries of a dimension that is as "
        "long as the axis.",
        f"{TILED}{_DIVIDES}",
    ),
    "all_to_all": (
        "Each device sends one of as many parts of split_axis as there are devices along the axis: "
        "equal ones with tiled=True, and else single entries of a dimension that is as long as "
        "the axis. They are put together along concat_axis.",
        f"{TILED}{_DIVIDES}",
    ),
    "pswapaxes": (
        "A dimension changes places with an axis of the mesh, and is as long as that.",
        "jax.lax.all_to_all(x, axis_name, split_axis, concat_axis, tiled=True) for a multiple.",
    ),
    "all_gather": (
        "The parts of all devices are put together along a new dimension axis=, or with tiled=True "
        "along one that the array has.",
        "axis=0; a scalar has no dimension to be tiled: leave tiled= out.",
    ),
}
"""The rule of a collective about its operand, and the remedy, where JAX raises an error."""

"""Errors that JAX raises when it compiles for devices, raised here when a program is read; and
errors for unsupported primitives that communicate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from .. import _jax
from .._base.errors import ShardingError, UnsupportedError
from .._mesh import Axis, split_over
from .primitives import AXIS_PARAMS, REDUCTIONS, SUMS, UNSUPPORTED, of
from .where import LazyWhere

Scope = Mapping[str, Axis]


def spec(spec: Any, where: LazyWhere) -> None:
    """Raise if a spec names an axis twice, as JAX does when it compiles for devices."""
    names = [name for row in split_over(spec) for name in row]
    for name in names:
        if names.count(name) > 1:
            raise ShardingError(
                f"{spec} names mesh axis {name!r} twice",
                where=str(where),
                rule="An axis splits one dimension of an array.",
                remedy="name it once, and another axis or None for the other dimension.",
            )


def nested(spec: Any, manual_axes: Set[str], where: LazyWhere) -> None:
    """Raise if a spec splits along an axis that an outer `shard_map` has split already."""
    entries = split_over(spec)
    repeated = [name for entry in entries for name in entry if name in manual_axes]
    if repeated:
        raise UnsupportedError(
            f"a shard_map inside another one names mesh axis {repeated[0]!r} in {spec}, which "
            "the outer one has taken",
            where=str(where),
            rule="An axis splits an array once. JAX generates such specs when it differentiates, "
            "in reverse mode, a shard_map nested in a partly manual one, and rejects them when it "
            "compiles for devices.",
            remedy="use one shard_map over all axes, or a forward derivative (jax.jvp).",
        )


def named(name: str, names: tuple[Any, ...], where: LazyWhere) -> None:
    """Raise if an axis is named twice."""
    repeated = [axis for axis in names if names.count(axis) > 1]
    if repeated:
        raise ShardingError(
            f"{name} over {names} names mesh axis {repeated[0]!r} twice",
            where=str(where),
            rule="A collective runs over one axis or several different ones.",
            remedy="name each axis once.",
        )


def grouped(name: str, groups: Any, axes: tuple[Axis, ...], where: LazyWhere) -> Any:
    """Check groups as JAX does when it compiles; return () if the collective does nothing."""
    count = math.prod(axis.size for axis in axes)
    indices = [index for group in groups for index in group]
    if sorted(indices) != list(range(count)) or not all(groups):
        raise ShardingError(
            f"{name} with axis_index_groups={groups} over {count} devices",
            where=str(where),
            rule="Each device along the axis is in exactly one group, and no group is empty.",
            remedy="name every index once.",
        )
    # JAX decides by the first group whether there is anything to exchange.
    idle = name == "all_to_all" and len(groups[0]) == 1
    if not idle and not all(map(_is_index, indices)):
        raise ShardingError(
            f"{name} with axis_index_groups={groups}",
            where=str(where),
            rule="Groups are tuples of device indices, which are integers.",
            remedy="int(i) for each index.",
        )
    if len({len(group) for group in groups}) == 1 or name in REDUCTIONS:
        return groups
    if idle:
        return ()
    raise ShardingError(
        f"{name} with axis_index_groups={groups}",
        where=str(where),
        rule="Only reductions take groups of different sizes.",
        remedy="use groups of one size.",
    )


def numbered(axes: tuple[Axis, ...], scope: Scope, where: LazyWhere) -> tuple[Axis, ...]:
    """Return the order in which a permutation over several axes numbers its devices."""
    ordered = tuple(axis for axis in scope.values() if axis in axes)
    if ordered == axes or _jax.permutes_as_given():
        return axes
    if _jax.PERMUTES_IN_MESH_ORDER:
        return ordered
    names = tuple(axis.name for axis in ordered)
    raise ShardingError(
        f"ppermute over {tuple(axis.name for axis in axes)}, on a mesh that has {names}",
        where=str(where),
        rule="JAX rejects a permutation over several axes that are not in mesh order.",
        remedy=f"jax.lax.ppermute(x, {names}, perm) with perm renumbered.",
    )


def permutation(perm: Any, axes: tuple[Axis, ...], where: LazyWhere) -> Any:
    """Check the pairs as JAX does when it compiles."""
    count = math.prod(axis.size for axis in axes)
    invalid = next((pair for pair in perm if len(pair) != 2), None)
    if invalid is not None:
        raise ShardingError(
            f"ppermute with perm={tuple(perm)} has {invalid}",
            where=str(where),
            rule="A permutation consists of pairs: a source and a destination.",
            remedy=f"for example [(i, (i + 1) % {count}) for i in range({count})].",
        )
    for index in (index for pair in perm for index in pair):
        if not _is_index(index) or not -count <= index < count:
            raise ShardingError(
                f"ppermute with perm={tuple(perm)} names device {index} of {count}",
                where=str(where),
                rule="Devices along an axis are numbered from 0.",
                remedy=f"numbers from 0 to {count - 1}; (i + 1) % {count} goes around.",
            )
    pairs = tuple((source % count, target % count) for source, target in perm)
    for side in zip(*pairs, strict=True):
        if len(set(side)) != len(side):
            raise ShardingError(
                f"ppermute with perm={tuple(perm)}",
                where=str(where),
                rule="No device sends twice and none receives twice.",
                remedy="give each source and each destination once.",
            )
    return pairs


def on_one_device(where: LazyWhere) -> ShardingError:
    """Return the error for a sharded program that uses a value placed on one device."""
    return ShardingError(
        "this combines a value on several devices with one that the program puts on a single "
        "device",
        where=str(where),
        rule="JAX does not mix devices: device_put or jnp.asarray with a SingleDeviceSharding "
        "places a value on one device only.",
        remedy="leave the sharding out, or use one of the mesh: NamedSharding(mesh, P()).",
    )


def alone(perm: Any, where: LazyWhere) -> None:
    """Raise if a permutation over no axis does not send from each device to itself."""
    if permutation(perm, (), where) != ((0, 0),):
        raise ShardingError(
            f"ppermute over () with perm={tuple(perm)}",
            where=str(where),
            rule="Without an axis each device is alone, and gets zeros unless it sends to itself.",
            remedy="name the axis; or use jnp.zeros_like(x).",
        )


def source(index: Any, axes: tuple[Axis, ...], where: LazyWhere) -> None:
    """Raise if the source device does not exist."""
    count = math.prod(axis.size for axis in axes)
    if not _is_index(index) or not 0 <= index < count:
        raise ShardingError(
            f"pbroadcast with source={index} of {count} device{'s' * (count != 1)}",
            where=str(where),
            rule="Devices along an axis are numbered from 0.",
            remedy=f"a number from 0 to {count - 1}.",
        )


def _is_index(number: Any) -> bool:
    return hasattr(number, "__index__")


def communicates(eqn: Any, name: str, scope: Scope) -> bool:
    """Return whether an unknown primitive communicates between devices."""
    if not scope:
        return False
    if name in UNSUPPORTED or (eqn.effects and _jax.named_axes(eqn.effects) & set(scope)):
        return True
    inside = (nested for inner in _jax.inner_jaxprs(eqn) for nested in _jax.equations(inner))
    return _names_axes(eqn, scope) or any(
        _is_collective(nested) or _names_axes(nested, scope) for nested in inside
    )


def _is_collective(eqn: Any) -> bool:
    row = of(_jax.primitive_name(eqn.primitive))
    return row.acts == "collective" or row.remote


def _names_axes(eqn: Any, scope: Scope) -> bool:
    """Return whether a parameter names a mesh axis."""
    values = [eqn.params.get(key) for key in AXIS_PARAMS]
    names = [v for value in values for v in (value if isinstance(value, COLLECTIONS) else (value,))]
    return any(isinstance(name, str) and name in scope for name in names)


COLLECTIONS = (tuple, list, frozenset, set)


def exported(program: Any, where: LazyWhere) -> None:
    """Raise for a program that `jax.export` has exported for several devices."""
    if program.nr_devices > 1 or "sdy.mesh" in program.mlir_module():
        raise UnsupportedError(
            f"this calls {program.fun_name}, which jax.export has exported for a mesh",
            where=str(where),
            rule="An exported program does not show what each device computes.",
            remedy="call the function that was exported.",
        )


def refs_in_composite(name: str, where: LazyWhere) -> UnsupportedError:
    """Return the error for a composite with refs inside, which JAX cannot compile."""
    return UnsupportedError(
        f"the composite {name!r} creates a mutable ref (jax.new_ref)",
        where=str(where),
        rule="JAX cannot compile a composite with refs inside.",
        remedy="pass the value instead of the ref, or call the function without composite.",
    )


def backward_only(where: LazyWhere) -> UnsupportedError:
    """Return the error for a tangent that a `custom_vjp` has no rule for."""
    return UnsupportedError(
        "a forward derivative of a function with a custom_vjp",
        where=str(where),
        rule="JAX has no forward rule for it: can't apply forward-mode autodiff (jvp) to a "
        "custom_vjp function.",
        remedy="use jax.grad or jax.vjp, or define a custom_jvp.",
    )


def operand(name: str, params: Mapping[str, Any], aval: Any, out: Any, where: LazyWhere) -> None:
    """Raise for an operand whose dtype, dimensions or size no device accepts."""
    problem = (
        _wrong_dtype(name, aval)
        or _negative_dimension(name, params)
        or _empty(name, params, aval, out)
    )
    if problem is not None:
        finding, rule, remedy = problem
        raise ShardingError(f"{name} {finding}", where=str(where), rule=rule, remedy=remedy)


Problem = tuple[str, str, str] | None


def _wrong_dtype(name: str, aval: Any) -> Problem:
    if name in SUMS and _jax.is_key(aval.dtype):
        return (
            "of random keys",
            "Keys are not numbers: JAX neither adds nor compares them.",
            "pass one key to all devices with P(), or create it from the same seed; for a key per "
            'device, use jax.random.fold_in(key, jax.lax.axis_index("data")).',
        )
    if name == "psum_scatter" and aval.dtype == bool:
        return (
            "of booleans",
            "JAX does not add booleans across devices here, though psum does.",
            "x.astype(jnp.int32) counts them.",
        )
    if name in ("pmax", "pmin") and np.issubdtype(aval.dtype, np.complexfloating):
        return (
            "of complex numbers",
            "XLA does not compare complex numbers across devices.",
            "compare real ones: jnp.abs(x), x.real.",
        )
    return None


def _negative_dimension(name: str, params: Mapping[str, Any]) -> Problem:
    dims = {argument: params[key] for argument, key in _DIMENSIONS.get(name, {}).items()}
    if all(_is_index(number) and number >= 0 for number in dims.values()):
        return None
    return (
        "with " + ", ".join(f"{argument}={number}" for argument, number in dims.items()),
        "This version of JAX counts the dimensions of an exchange from the front.",
        "numbers from 0; the last dimension is x.ndim - 1.",
    )


_DIMENSIONS = {
    "all_to_all": {"split_axis": "split", "concat_axis": "concat"},
    "psum_scatter": {"scatter_dimension": "dimension"},
}


def _empty(name: str, params: Mapping[str, Any], aval: Any, out: Any) -> Problem:
    shape = {"all_gather": aval.shape, "psum_scatter": out.shape}.get(name)
    if shape is None or not params["tiled"] or shape[params["dimension"]]:
        return None
    return (
        f"of an array of shape {aval.shape} along dimension {params['dimension']}",
        "XLA rejects parts without elements along the dimension that it gathers or scatters.",
        "leave the collective out if there is nothing to exchange.",
    )

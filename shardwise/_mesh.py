"""Virtual meshes, and how a `PartitionSpec` splits an array.

A mesh axis inside shardwise is an `Axis`: its name and size. Two `shard_map`s whose axes agree in
both share the axis.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from ._base.errors import ShardingError, a_type


@dataclasses.dataclass(frozen=True, order=True)
class Axis:
    """One axis of a mesh."""

    name: str
    size: int

    def __repr__(self) -> str:
        return f"{self.name}={self.size}"


Placement = tuple[tuple[Axis, ...], ...]
"""For each dimension of an array, the axes that split it, the slowest first."""


def mesh(axes: Mapping[str, int] | None = None, /, *names: Any, **sizes: int) -> AbstractMesh:
    """Return a virtual mesh: names and sizes, no devices.

    The result is a `jax.sharding.AbstractMesh` with `Auto` axes. `jax.shard_map` and all functions
    of shardwise that take a mesh accept it.

    Args:
        axes: Axis names and sizes as a mapping, for names that are not Python identifiers.
        *names: Unsupported: separate sizes and names, as in `jax.make_mesh`, raise an error.
        **sizes: Axis names and sizes, in order: `mesh(data=8, model=2)`.

    Raises:
        ShardingError: No axes, an axis given twice, or a size that is not a positive integer.
    """
    if names or (axes is not None and not isinstance(axes, Mapping)):
        arguments = ", ".join(map(repr, (axes, *names)))
        raise ShardingError(
            f"expected axis names with sizes, found {arguments}",
            where="sw.mesh",
            rule="A mesh has named axes.",
            remedy="sw.mesh(data=8, model=2)",
        )
    axes = dict(axes or {})
    twice = sorted(set(axes) & set(sizes))
    if twice:
        raise ShardingError(
            f"axis {twice[0]!r} is given twice, as {axes[twice[0]]!r} and {sizes[twice[0]]!r}",
            where="sw.mesh",
            rule="The axis names of a mesh are distinct.",
            remedy=f"name {twice[0]!r} once.",
        )
    axes |= sizes
    if not axes:
        raise ShardingError(
            "no axes were given",
            where="sw.mesh",
            rule="A mesh has at least one axis.",
            remedy="sw.mesh(data=8)",
        )
    for name, size in axes.items():
        _check_size(name, size)
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(map(int, axes.values())), tuple(axes), axis_types=types)


def _check_size(name: Any, size: Any) -> None:
    if not isinstance(name, str):
        raise ShardingError(
            f"axis name {name!r} is {a_type(name)}",
            where="sw.mesh",
            rule="Axis names are strings.",
            remedy=f"use {str(name)!r}.",
        )
    if not is_count(size):
        raise ShardingError(
            f"axis {name!r} has size {size!r}",
            where="a mesh",
            rule="The size of an axis is a positive integer.",
            remedy=_right_size(name, size),
        )


def _right_size(name: str, size: Any) -> str:
    """Return the remedy for an invalid size."""
    if isinstance(size, str) and size.strip().isdigit():
        return f"{name}={size.strip()}, without quotes."
    if isinstance(size, str) and "," in size:
        return f"{name}=[{size.strip()}], without quotes, if several sizes are tried."
    if isinstance(size, float) and size >= 1 and size.is_integer():
        return f"{name}={int(size)}"
    if is_letter(size):
        return (
            f'{name}=8, a number; sw.prove takes a letter alone, for every size: {{"{name}": "n"}}.'
        )
    if isinstance(size, str):
        return f"{name}=8, a number."
    if isinstance(size, Iterable):
        return (
            f'one size; sw.check and sw.prove try several, as a list: {{"{name}": [1, 2, 4, 8]}}.'
        )
    return f"{name}=1 is the smallest."


def is_letter(value: Any) -> bool:
    """Return whether this is a letter, which stands for every size of an axis that divides."""
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value.isalpha()


def is_count(value: Any) -> bool:
    """Return whether this is a positive integer."""
    try:
        return not isinstance(value, bool) and operator.index(value) > 0
    except TypeError:
        return False


def check_at_once(at_once: Any, where: str) -> None:
    """Raise unless this is a valid number of shards to compute at once.

    Args:
        at_once: The number, or `"auto"`.
        where: The function that takes it.
    """
    if not (isinstance(at_once, str) and at_once == "auto") and not is_count(at_once):
        raise ShardingError(
            f"at_once is {at_once!r}",
            where=where,
            rule="The number of shards computed at once is a positive integer or 'auto'.",
            remedy="at_once=1 uses the least memory; at_once='auto' trades memory for time.",
        )


MeshLike = Mesh | AbstractMesh | Mapping[str, int]
"""What every argument `mesh=` takes: a real mesh, a virtual one, or axis sizes by name."""


def one_mesh(value: MeshLike) -> Mesh | AbstractMesh:
    """Return the mesh for an argument `mesh=`; for sizes by name, a virtual one."""
    if isinstance(value, Mesh | AbstractMesh):
        if value.axis_names:
            return value
        raise _no_mesh("mesh has no axes", "A mesh has at least one axis.")
    if not isinstance(value, Mapping):
        raise _no_mesh(
            f"mesh is {value!r}",
            "A mesh is a jax.sharding.Mesh, a virtual one, or a dict of axis names and sizes.",
        )
    for name, size in value.items():
        if isinstance(size, list | tuple):
            raise _no_mesh(
                f"axis {name!r} has several sizes: {size!r}",
                "This runs on one mesh; sw.check and sw.prove try several.",
            )
    return mesh(value)


def _no_mesh(what: str, rule: str) -> ShardingError:
    remedy = 'mesh=sw.mesh(data=8), or mesh={"data": 8}'
    return ShardingError(what, where="mesh=", rule=rule, remedy=remedy)


def abstract(mesh: MeshLike) -> AbstractMesh:
    """Return the mesh without its devices."""
    result = one_mesh(mesh)
    return result.abstract_mesh if isinstance(result, Mesh) else result


def resized(mesh: AbstractMesh, sizes: Mapping[str, int]) -> AbstractMesh:
    """Return a mesh with the same axes and axis types, and other sizes."""
    return AbstractMesh(
        tuple(sizes[name] for name in mesh.axis_names), mesh.axis_names, axis_types=mesh.axis_types
    )


def one_device(mesh: AbstractMesh) -> AbstractMesh:
    """Return a mesh with the same axes, each of size 1."""
    return resized(mesh, dict.fromkeys(mesh.axis_names, 1))


def axes_of(mesh: Mesh | AbstractMesh, manual: Iterable[str] | None = None) -> dict[str, Axis]:
    """Return the axes of a mesh by name, in mesh order; only the `manual` ones if given."""
    names = None if manual is None else set(manual)
    return {
        name: Axis(name, size)
        for name, size in mesh.shape.items()
        if names is None or name in names
    }


def placement(spec: PartitionSpec, rank: int, axes: Mapping[str, Axis]) -> Placement:
    """Return how a spec splits an array of `rank` dimensions over the axes that are manual here."""
    rows = [tuple(axes[name] for name in names if name in axes) for names in split_over(spec)]
    return (*rows, *[()] * (rank - len(rows)))


def split_over(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """Return the axis names in each entry of a spec."""
    # A spec with `unreduced` or `reduced` cannot be iterated over.
    return [
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in spec.partitions
    ]


def words(mesh: AbstractMesh) -> str:
    """Format a mesh: `{data: 4, model: 2}`."""
    return "{" + ", ".join(f"{name}: {size}" for name, size in mesh.shape.items()) + "}"

"""How the arguments of a program are sharded on its mesh.

On a mesh with Explicit axes the sharding of an array is part of its type, and a `shard_map` without
`in_specs` takes its specs from there. An array on one device has no such type. Its spec is passed
with `in_specs=`; an array that has a sharding keeps it; otherwise the spec is inferred from the
`shard_map`s of the program. If that is not possible, an error asks for `in_specs`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._base.errors import ShardingError, a_type, did_you_mean
from .._jax import types
from .._mesh import AbstractMesh, Mesh, Placement, split_over
from .._program import Body, Join, Leaf, Split, Var
from .tree_structure import is_whole

Spec = PartitionSpec | NamedSharding | None


class Leafwise(list[Spec]):
    """The spec of each array among the arguments, in the order that a program takes them."""


WHERE = "in_specs="


def is_spec(x: Any) -> bool:
    """Return whether this is a spec; None leaves the spec open."""
    return x is None or isinstance(x, PartitionSpec | NamedSharding)


def for_leaves(in_specs: Any, args: tuple[Any, ...]) -> list[Spec]:
    """Return one spec for each leaf of the positional arguments, from a prefix of their tree."""
    prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    _check_specs(prefix)
    # None is a tree without leaves to JAX, and here a spec that is left open.
    specs, tree = jax.tree.flatten(prefix, is_leaf=is_spec)
    try:
        parts = tree.flatten_up_to(args)
    except ValueError as error:
        raise ShardingError(
            f"they are {in_specs}, and there {_are(len(args))}",
            where=WHERE,
            rule="There is one spec for each argument or for each array in it, or one for all.",
            remedy="in_specs=(P('data'), None) is a spec for the first of two arguments.",
        ) from error
    return [
        spec
        for spec, part in zip(specs, parts, strict=True)
        for _ in jax.tree.leaves(part, is_leaf=is_whole)
    ]


def _are(count: int) -> str:
    return "is 1 argument" if count == 1 else f"are {count} arguments"


def _check_specs(in_specs: Any) -> None:
    for path, spec in jax.tree_util.tree_leaves_with_path(in_specs, is_leaf=is_spec):
        if not is_spec(spec):
            raise ShardingError(
                f"in_specs{jax.tree_util.keystr(path)} is {a_type(spec)}",
                where=WHERE,
                rule="Specs are jax.sharding.PartitionSpecs, NamedShardings, or None.",
                remedy="in_specs=(P('data'), P())",
            )


class ArgumentSpecs:
    """The arrays passed to a program, and how each of them is sharded on its mesh."""

    def __init__(
        self, flat: Sequence[Any], specs: Sequence[Spec], mesh: Mesh | AbstractMesh | None
    ):
        self.mesh = _mesh(specs, mesh)
        self.explicit = explicit_axes(self.mesh)
        # On a real mesh, arrays have shardings of JAX.
        self.virtual = not isinstance(mesh, Mesh)
        self.specs: list[PartitionSpec | None] = []
        for number, (leaf, spec) in enumerate(zip(flat, specs, strict=True)):
            self.specs.append(self._spec(number, leaf, spec))

    def _spec(self, number: int, leaf: Any, spec: Spec) -> PartitionSpec | None:
        requested = spec.spec if isinstance(spec, NamedSharding) else spec
        existing = types.explicit_spec(leaf)
        if requested is None and existing is None:
            return None
        if self.mesh is None:
            return requested
        if (
            requested is not None
            and existing is not None
            and _entries(requested) != _entries(existing)
        ):
            raise ShardingError(
                f"array {number} is sharded as {existing}, and its spec in in_specs is {requested}",
                where=WHERE,
                rule="An array that has a sharding keeps it.",
                remedy="leave its spec out (None), or reshard the array.",
            )
        spec_used = existing if requested is None else requested
        if spec_used is not None:
            self._check(number, leaf, spec_used, WHERE if existing is None else "an argument")
        return spec_used

    def _check(self, number: int, leaf: Any, spec: PartitionSpec, where: str) -> None:
        assert self.mesh is not None
        shape = jax.typeof(leaf).shape
        rows = split_over(spec)
        names = [*(name for row in rows for name in row), *spec.unreduced, *spec.reduced]
        problem = rule = remedy = ""
        for name in names:
            if name not in self.mesh.shape:
                problem = f"{spec} names axis {name!r}, and the mesh has {list(self.mesh.shape)}"
                rule = "Arguments are sharded over the mesh that the program runs on."
                remedy = did_you_mean(name, self.mesh.shape, 0.5) or (
                    "name one of these axes."
                    if where == WHERE
                    else "run it on a mesh with the axes of the array's sharding, or reshard it."
                )
        if len(rows) > len(shape):
            problem = f"{spec} has {len(rows)} entries, and the array {len(shape)} dimensions"
            rule = "There is at most one entry for each dimension."
            remedy = "leave the last ones out."
        elif not problem:
            for d, row in enumerate(rows):
                parts = math.prod(self.mesh.shape[name] for name in row)
                if shape[d] % parts and self.explicit & set(row):
                    problem = f"dimension {d} of size {shape[d]} is split {parts} ways by {spec}"
                    rule = "Every device gets an equal part."
                    remedy = "choose a size or a mesh that divides."
        if problem:
            location = f"array {number} of shape {tuple(shape)}: "
            raise ShardingError(location + problem, where=where, rule=rule, remedy=remedy)

    @property
    def unspecified(self) -> list[int]:
        """Return the arrays whose spec is unknown although it is part of their type."""
        if not self.explicit or not self.virtual:
            return []
        return [i for i, spec in enumerate(self.specs) if spec is None]

    def infer_from(self, body: Body) -> bool:
        """Infer open specs from the program; return whether that found any."""
        if not body.ins:
            return False
        values = body.ins[len(body.ins) - len(self.specs) :]
        specs = _specs_in_program(body)
        inferred = [i for i in self.unspecified if values[i] in specs]
        for i in inferred:
            rows = [tuple(axis.name for axis in row) for row in specs[values[i]]]
            self.specs[i] = PartitionSpec(*(row or None for row in rows))
        return bool(inferred)

    def alternatives(self, number: int, leaf: Any) -> Iterator[ArgumentSpecs]:
        """Yield copies in which one array is sharded differently: along one axis, in one
        dimension."""
        assert self.mesh is not None
        for d, size in enumerate(jax.typeof(leaf).shape):
            for name in sorted(self.explicit):
                if size % self.mesh.shape[name] == 0:
                    alternative = copy.copy(self)
                    alternative.specs = list(self.specs)
                    alternative.specs[number] = PartitionSpec(*[None] * d, name)
                    yield alternative

    def types(self, flat: Sequence[Any]) -> list[Any]:
        """Return the arguments to trace with: arrays, or types if these depend on the mesh."""
        if self.mesh is None:
            return list(flat)
        return [self._type(leaf, spec) for leaf, spec in zip(flat, self.specs, strict=True)]

    def _type(self, leaf: Any, spec: PartitionSpec | None) -> Any:
        aval = jax.typeof(leaf)
        # A spec without entries is false, even if it has `unreduced` axes.
        requested = self._typed(PartitionSpec() if spec is None else spec, len(aval.shape))
        mesh = types.mesh_of(aval)
        same_mesh = mesh == self.mesh or (_is_plain(requested) and (mesh is None or mesh.empty))
        if same_mesh and _entries(requested) == _entries(types.spec_of(aval)):
            return leaf
        sharding = None if _is_plain(requested) else NamedSharding(self.mesh, requested)  # pyright: ignore[reportArgumentType]
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False)
        )

    def _typed(self, spec: PartitionSpec, rank: int) -> PartitionSpec:
        """Return the part of a spec that is part of a type: its Explicit axes."""
        rows = [tuple(n for n in row if n in self.explicit) for row in split_over(spec)]
        entries = [row[0] if len(row) == 1 else row or None for row in rows]
        return PartitionSpec(
            *entries,
            *[None] * (rank - len(entries)),
            unreduced=spec.unreduced & self.explicit,
            reduced=spec.reduced & self.explicit,
        )


def _specs_in_program(body: Body) -> dict[Any, Placement]:
    """Infer the specs of values from the `shard_map`s that take and return them.

    This is a guess: the result of an elementwise operation is assumed to be sharded like its
    operands. JAX rejects a wrong guess, and any guess that it accepts gives the same result.
    """
    specs: dict[Any, Placement] = {}
    previous = -1
    while len(specs) > previous:
        previous = len(specs)
        for op in reversed(body.ops):
            if isinstance(op, Split):
                specs.setdefault(op.ins[0], op.placement)
            elif isinstance(op, Join):
                specs.setdefault(op.outs[0], op.placement)
            elif isinstance(op, Leaf) and not op.scope:
                same_shape = [v for v in [*op.outs, *op.ins] if isinstance(v, Var)]
                same_shape = [v for v in same_shape if v.shape == op.outs[0].shape]
                rows = [specs[v] for v in same_shape if v in specs]
                specs |= {v: rows[0] for v in same_shape if rows and v not in specs}
    return specs


def explicit_axes(mesh: AbstractMesh | None) -> frozenset[str]:
    """Return the axes of a mesh whose use is part of the types of arrays."""
    if mesh is None:
        return frozenset()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in kinds if kind == AxisType.Explicit)


def automatic(mesh: AbstractMesh) -> AbstractMesh:
    """Return the same mesh with Auto axes."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def rejected_specs(error: Exception, names: Sequence[str]) -> ShardingError:
    """Return the error for arguments whose sharding JAX rejects and whose spec is not given."""
    return ShardingError(
        str(error),
        where="the types of arrays on a mesh with Explicit axes",
        rule=f"How {_listed(names)} is part of the type, and no spec was passed.",
        remedy="in_specs=(P('data'), P()), one spec for each argument.",
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} sharded"


def missing_specs(names: Sequence[str]) -> ShardingError:
    """Return the error for arguments whose spec the program needs and that is not given."""
    return ShardingError(
        f"how {_listed(names)} over the mesh is unknown",
        where="a shard_map without in_specs",
        rule="On a mesh with Explicit axes it takes its specs from the types of its arguments; "
        "an array on one device has none.",
        remedy="in_specs=(P('data'), P()), one spec for each argument; P() is the same on every "
        "device. Arrays that have a sharding keep it.",
    )


def _mesh(specs: Sequence[Spec], mesh: Mesh | AbstractMesh | None) -> AbstractMesh | None:
    """Return the mesh that specs refer to: the argument, that of a sharding, or the ambient one."""
    if mesh is not None:
        return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    meshes = [spec.mesh for spec in specs if isinstance(spec, NamedSharding)]
    if meshes:
        return meshes[0].abstract_mesh
    ambient = jax.sharding.get_abstract_mesh()
    if not ambient.empty:
        return ambient if any(spec is not None for spec in specs) else None
    if any(spec is not None for spec in specs):
        raise ShardingError(
            "there is no mesh that they refer to",
            where=WHERE,
            rule="A PartitionSpec names axes of a mesh.",
            remedy="pass mesh= as well, or NamedShardings.",
        )
    return None


def _is_plain(spec: PartitionSpec) -> bool:
    return not (any(split_over(spec)) or spec.unreduced or spec.reduced)


def _entries(spec: PartitionSpec) -> Any:
    rows = split_over(spec)
    while rows and not rows[-1]:
        rows.pop()
    return rows, spec.unreduced, spec.reduced

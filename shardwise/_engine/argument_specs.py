"""How the arguments of a program lie on its mesh.

On a mesh with Explicit axes the way an array lies is part of its type, and a `shard_map` without
`in_specs` takes its specs from there. An array on one device has no such type. So it is said with
`in_specs=`; an array that has a sharding keeps it; and what neither says is read off the specs of
the program's own `shard_map`s, where it has them. What is then still open is asked for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._base.errors import ShardingError, a_type, explain_error
from .._jax import types
from .._mesh import AbstractMesh, Mesh, Placement, near, split_over
from .._program import Body, Join, Leaf, Split, Var
from .tree_structure import is_whole

Spec = PartitionSpec | NamedSharding | None


class Leafwise(list[Spec]):
    """What is said of each array among the arguments, in the order that a program takes them."""


WHERE = "in_specs="


def is_spec(x: Any) -> bool:
    """Whether this says how an array lies; None leaves it open."""
    return x is None or isinstance(x, PartitionSpec | NamedSharding)


def for_leaves(in_specs: Any, args: tuple[Any, ...]) -> list[Spec]:
    """One spec for each leaf of the positional arguments, from a prefix of their tree."""
    whole = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    _check_specs(whole)
    # None is a tree without leaves to JAX, and here a spec that is left open.
    specs, tree = jax.tree.flatten(whole, is_leaf=is_spec)
    try:
        parts = tree.flatten_up_to(args)
    except ValueError as error:
        raise ShardingError(
            explain_error(
                f"they are {in_specs}, and there {_are(len(args))}",
                where=WHERE,
                rule="There is one spec for each argument or for each array in it, or one spec "
                "that serves all of them.",
                remedy="in_specs=(P('data'), None) says how the first of two arguments lies.",
            )
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
                explain_error(
                    f"in_specs{jax.tree_util.keystr(path)} is {a_type(spec)}",
                    where=WHERE,
                    rule="Specs are jax.sharding.PartitionSpecs, NamedShardings, or None.",
                    remedy="in_specs=(P('data'), P())",
                )
            )


class ArgumentSpecs:
    """The arrays given to a program, and how each of them lies on its mesh."""

    def __init__(
        self, flat: Sequence[Any], specs: Sequence[Spec], mesh: Mesh | AbstractMesh | None
    ):
        self.mesh = _mesh(specs, mesh)
        self.explicit = explicit_axes(self.mesh)
        # With devices at hand, arrays lie as they do for JAX.
        self.virtual = not isinstance(mesh, Mesh)
        self.specs: list[PartitionSpec | None] = []
        for number, (leaf, spec) in enumerate(zip(flat, specs, strict=True)):
            self.specs.append(self._spec(number, leaf, spec))

    def _spec(self, number: int, leaf: Any, spec: Spec) -> PartitionSpec | None:
        said = spec.spec if isinstance(spec, NamedSharding) else spec
        kept = types.explicit_spec(leaf)
        if said is None and kept is None:
            return None
        if self.mesh is None:
            return said
        if said is not None and kept is not None and _entries(said) != _entries(kept):
            raise ShardingError(
                explain_error(
                    f"array {number} lies as {kept}, and in_specs say {said}",
                    where=WHERE,
                    rule="An array that has a sharding keeps it.",
                    remedy="leave its spec out (None), or reshard the array.",
                )
            )
        found = kept if said is None else said
        if found is not None:
            self._check(number, leaf, found, WHERE if kept is None else "an argument")
        return found

    def _check(self, number: int, leaf: Any, spec: PartitionSpec, where: str) -> None:
        assert self.mesh is not None
        shape = jax.typeof(leaf).shape
        rows = split_over(spec)
        names = [*(name for row in rows for name in row), *_owed(spec), *_paid(spec)]
        what = rule = remedy = ""
        for name in names:
            if name not in self.mesh.shape:
                what = f"{spec} names axis {name!r}, and the mesh has {list(self.mesh.shape)}"
                rule = "Arguments lie on the mesh that the program runs on."
                remedy = near(name, self.mesh.shape) or (
                    "name one of these axes."
                    if where == WHERE
                    else "run it on a mesh with the axes that the array lies along, or reshard it."
                )
        if len(rows) > len(shape):
            what = f"{spec} has {len(rows)} entries, and the array {len(shape)} dimensions"
            rule = "There is at most one entry for each dimension."
            remedy = "leave the last ones out."
        elif not what:
            for d, row in enumerate(rows):
                parts = math.prod(self.mesh.shape[name] for name in row)
                if shape[d] % parts and self.explicit & set(row):
                    what = f"dimension {d} of size {shape[d]} is split {parts} ways by {spec}"
                    rule = "Every device gets an equal part."
                    remedy = "choose a size or a mesh that divides."
        if what:
            at = f"array {number} of shape {tuple(shape)}: "
            raise ShardingError(explain_error(at + what, where=where, rule=rule, remedy=remedy))

    @property
    def unsaid(self) -> list[int]:
        """Arrays of which nobody has said how they lie, where that is part of their type."""
        if not self.explicit or not self.virtual:
            return []
        return [i for i, spec in enumerate(self.specs) if spec is None]

    def read_off(self, body: Body) -> bool:
        """Fill in what the program says itself; whether it says anything."""
        if not body.ins:
            return False
        given = body.ins[len(body.ins) - len(self.specs) :]
        taken = _taken_apart(body)
        found = [i for i in self.unsaid if given[i] in taken]
        for i in found:
            rows = [tuple(axis.name for axis in row) for row in taken[given[i]]]
            self.specs[i] = PartitionSpec(*(row or None for row in rows))
        return bool(found)

    def others(self, number: int, leaf: Any) -> Iterator[ArgumentSpecs]:
        """The same with one array lying in other ways: along one axis, in one dimension."""
        assert self.mesh is not None
        for d, size in enumerate(jax.typeof(leaf).shape):
            for name in sorted(self.explicit):
                if size % self.mesh.shape[name] == 0:
                    other = copy.copy(self)
                    other.specs = list(self.specs)
                    other.specs[number] = PartitionSpec(*[None] * d, name)
                    yield other

    def types(self, flat: Sequence[Any]) -> list[Any]:
        """What to trace with: the arrays themselves, or their types where the mesh has a say."""
        if self.mesh is None:
            return list(flat)
        return [self._type(leaf, spec) for leaf, spec in zip(flat, self.specs, strict=True)]

    def _type(self, leaf: Any, spec: PartitionSpec | None) -> Any:
        aval = jax.typeof(leaf)
        # A spec without entries is false, also where it says what is owed.
        wanted = self._typed(PartitionSpec() if spec is None else spec, len(aval.shape))
        own = types.mesh_of(aval)
        here = own == self.mesh or (_is_plain(wanted) and (own is None or own.empty))
        if here and _entries(wanted) == _entries(types.spec_of(aval)):
            return leaf
        sharding = None if _is_plain(wanted) else NamedSharding(self.mesh, wanted)  # pyright: ignore[reportArgumentType]
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False)
        )

    def _typed(self, spec: PartitionSpec, rank: int) -> PartitionSpec:
        """The part of a spec that is part of a type: its Explicit axes."""
        rows = [tuple(n for n in row if n in self.explicit) for row in split_over(spec)]
        entries = [row[0] if len(row) == 1 else row or None for row in rows]
        kept = {
            name: getattr(spec, name) & self.explicit
            for name in ("unreduced", "reduced")
            if getattr(spec, name, None)
        }
        return PartitionSpec(*entries, *[None] * (rank - len(entries)), **kept)


def _taken_apart(body: Body) -> dict[Any, Placement]:
    """How the values of a program lie, read off the `shard_map`s that they go into and come from.

    It is a guess: what is computed element by element lies as its operands do. JAX refuses a guess
    that does not fit, and where it fits the program gives the same with any other that does.
    """
    taken: dict[Any, Placement] = {}
    known = -1
    while len(taken) > known:
        known = len(taken)
        for op in reversed(body.ops):
            if isinstance(op, Split):
                taken.setdefault(op.ins[0], op.placement)
            elif isinstance(op, Join):
                taken.setdefault(op.outs[0], op.placement)
            elif isinstance(op, Leaf) and not op.scope:
                alike = [v for v in [*op.outs, *op.ins] if isinstance(v, Var)]
                alike = [v for v in alike if v.shape == op.outs[0].shape]
                rows = [taken[v] for v in alike if v in taken]
                taken |= {v: rows[0] for v in alike if rows and v not in taken}
    return taken


def explicit_axes(mesh: AbstractMesh | None) -> frozenset[str]:
    """The axes of a mesh whose use is part of the types of arrays."""
    if mesh is None:
        return frozenset()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in kinds if kind == AxisType.Explicit)


def automatic(mesh: AbstractMesh) -> AbstractMesh:
    """The same mesh with Auto axes."""
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)


def refused(error: Exception, names: Sequence[str]) -> ShardingError:
    """The error where JAX refuses the way arguments lie, and nobody has said how they do."""
    return ShardingError(
        explain_error(
            str(error),
            where="the types of arrays on a mesh with Explicit axes",
            rule=f"How {_listed(names)} on the mesh is part of the type, and was not said.",
            remedy="in_specs=(P('data'), P()), one spec for each argument.",
        )
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} lie{'s' if len(names) == 1 else ''}"


def ask(names: Sequence[str]) -> ShardingError:
    """The error for arguments whose layout the program leaves to them, and they do not say."""
    return ShardingError(
        explain_error(
            f"how {_listed(names)} on the mesh is not said",
            where="a shard_map without in_specs",
            rule="On a mesh with Explicit axes it takes its specs from the types of its arguments; "
            "an array on one device has none.",
            remedy="say it: in_specs=(P('data'), P()), one spec for each argument; P() is the same "
            "on every device. Arrays that have a sharding keep it.",
        )
    )


def _mesh(specs: Sequence[Spec], mesh: Mesh | AbstractMesh | None) -> AbstractMesh | None:
    """The mesh that specs are about: the one asked for, that of a sharding, or the one around."""
    if mesh is not None:
        return mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    own = [spec.mesh for spec in specs if isinstance(spec, NamedSharding)]
    if own:
        return own[0].abstract_mesh
    around = jax.sharding.get_abstract_mesh()
    if not around.empty:
        return around if any(spec is not None for spec in specs) else None
    if any(spec is not None for spec in specs):
        raise ShardingError(
            explain_error(
                "there is no mesh that they could be about",
                where=WHERE,
                rule="A PartitionSpec names axes of a mesh.",
                remedy="give mesh= as well, or NamedShardings.",
            )
        )
    return None


def _is_plain(spec: PartitionSpec) -> bool:
    return not any(split_over(spec)) and not _owed(spec) and not _paid(spec)


def _paid(spec: PartitionSpec) -> frozenset[str]:
    return getattr(spec, "reduced", frozenset())


def _owed(spec: PartitionSpec) -> frozenset[str]:
    return getattr(spec, "unreduced", frozenset())


def _entries(spec: PartitionSpec) -> Any:
    rows = split_over(spec)
    while rows and not rows[-1]:
        rows.pop()
    return rows, _owed(spec), _paid(spec)

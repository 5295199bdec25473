"""Axes of any size: `mesh={"data": "n"}` is every size that divides what the axis cuts.

The dimensions that a program cuts are read from its `in_specs`, on one device. The sizes that
divide them are finitely many, so each is a mesh of its own: nothing is inferred from one size for
another, and a program may do something else at each of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..._base.doing import doing
from ..._base.errors import ShardingError, ShardwiseError, UnsupportedError, text_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._mesh import AbstractMesh, is_letter, words
from ..._mesh import mesh as make_mesh
from ..._program import Atom, Body, Join, Lit, Split, is_sharded
from .options import refused

MOST = 1000
"""The largest number of meshes that letters may stand for."""

FEW = 8
"""The largest size of such an axis on which a program is run."""

LISTED = 10
"""The largest number of sizes that are all written out."""

Cut = tuple[tuple[str, ...], int]
"""The axes that cut a dimension, and its size."""


@dataclasses.dataclass(frozen=True)
class Every:
    """All sizes that axes of any size can have, and those of them that were not proved."""

    rule: str
    """The sizes as text: `every size of data that divides 65536`."""
    meshes: tuple[AbstractMesh, ...] = dataclasses.field(repr=False)
    """A mesh for each, the smallest first."""
    open: tuple[str, ...] = dataclasses.field(repr=False)
    """The axes of any size."""
    not_accepted: tuple[AbstractMesh, ...] = dataclasses.field(default=(), repr=False)
    """The meshes on which the program cannot be traced."""
    because: str = ""
    """The error on the first of them."""
    not_reached: tuple[AbstractMesh, ...] = dataclasses.field(default=(), repr=False)
    """The meshes for which there was no time."""

    @property
    def accepted(self) -> tuple[AbstractMesh, ...]:
        """The other meshes."""
        left_out = {*self.not_accepted, *self.not_reached}
        return tuple(mesh for mesh in self.meshes if mesh not in left_out)

    def without(
        self, refused: Mapping[AbstractMesh, Exception], not_reached: Sequence[AbstractMesh]
    ) -> Every:
        """Return the sizes, of which some are not accepted or not reached."""
        because = next(map(_first_line, refused.values()), "")
        return dataclasses.replace(
            self, not_accepted=tuple(refused), because=because, not_reached=tuple(not_reached)
        )

    def place(self, meshes: Sequence[str]) -> str:
        """Return some of the meshes as text: `for data = 8 to 64`."""
        accepted = [mesh for mesh in self.meshes if mesh not in self.not_accepted]
        if len(meshes) < len(accepted):
            return f"{'for' if self._sizes else 'on'} {self.some(meshes)}"
        which = " and that the program accepts" if self.not_accepted else ""
        count = f"{len(meshes)} {'size' if self._sizes else 'mesh'}"
        count += "" if len(meshes) == 1 else "s" if self._sizes else "es"
        return f"for {self.rule}{which} ({count}: {_listed(list(map(self._label, accepted)))})"

    def some(self, meshes: Sequence[str]) -> str:
        """Return some of the meshes as text: `data = 8 to 64`."""
        numbers = [number for number, mesh in enumerate(self.meshes) if words(mesh) in meshes]
        labels = [self._label(self.meshes[number]) for number in numbers]
        text = _listed(labels)
        if len(labels) > LISTED:
            text += f" ({len(labels)} of {len(self.meshes)})"
        if self._sizes and len(labels) > 1 and numbers == [*range(numbers[0], len(self.meshes))]:
            text = f"{labels[0]} to {labels[-1]}"
        return f"{' = '.join(self.open)} = {text}" if self._sizes else text

    @property
    def _sizes(self) -> bool:
        """Whether one number names a mesh."""
        return all(len({mesh.shape[axis] for axis in self.open}) == 1 for mesh in self.meshes)

    def _label(self, mesh: AbstractMesh) -> str:
        if self._sizes:
            return str(mesh.shape[self.open[0]])
        return "{" + ", ".join(f"{axis}: {mesh.shape[axis]}" for axis in self.open) + "}"

    @property
    def sentence(self) -> str:
        """A sentence on the sizes that the program does not accept, if there are any."""
        if not self.not_accepted:
            return ""
        sizes = self.some(list(map(words, self.not_accepted)))
        return f"The program does not accept {sizes}: {self.because}"

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes as plain data."""
        rows = "meshes", "not_accepted", "not_reached"
        listed = {name: [words(mesh) for mesh in getattr(self, name)] for name in rows}
        return {"rule": self.rule, **listed, "because": self.because}


def _listed(labels: Sequence[str]) -> str:
    if len(labels) <= LISTED:
        return ", ".join(labels)
    return ", ".join([*labels[:3], "...", labels[-1]])


@dataclasses.dataclass(frozen=True)
class AnySize:
    """Axis names, each with a size or a letter; at least one has a letter."""

    given: Mapping[str, Any]
    called: str

    @classmethod
    def of(cls, given: Any, called: str) -> AnySize | None:
        """Return the description of meshes if it has a letter in place of a size."""
        if not isinstance(given, Mapping):
            return None
        texts = {axis: size for axis, size in given.items() if isinstance(size, str)}
        for axis, size in texts.items():
            if not is_letter(size) and not size.strip().isdigit() and "," not in size:
                raise refused(
                    f"axis {axis!r} has size {size!r}",
                    "The size of an axis is a positive integer, a list of them, or a letter for "
                    "every size that divides.",
                    f'mesh={{"{axis}": "n"}}, or mesh={{"{axis}": [1, 2, 4, 8]}}',
                    ShardingError,
                    f"sw.{called}",
                )
        if not any(map(is_letter, given.values())):
            return None
        columns = {
            axis: [*size] if isinstance(size, list | tuple) else [size]
            for axis, size in given.items()
        }
        result = cls({axis: row[0] if row else 0 for axis, row in columns.items()}, called)
        for axis, row in columns.items():
            if len(row) > 1:
                raise result.error(
                    f"axis {axis!r} has {len(row)} sizes, beside an axis of any size",
                    f"one size for {axis!r}, and a call for each of its sizes.",
                )
        # Raise for what is no size.
        make_mesh({axis: 1 if is_letter(size) else size for axis, size in result.given.items()})
        return result

    @property
    def letters(self) -> dict[str, list[str]]:
        """The axes of each letter."""
        rows: dict[str, list[str]] = {}
        for axis, size in self.given.items():
            if is_letter(size):
                rows.setdefault(size, []).append(axis)
        return rows

    @property
    def one(self) -> AbstractMesh:
        """The mesh of these axes with one device."""
        return make_mesh(dict.fromkeys(self.given, 1))

    def error(self, what: str, remedy: str = "", axis: str = "") -> ShardingError:
        """Return the error for a description, or a program, that names no sizes."""
        axis = axis or next(axes[0] for axes in self.letters.values())
        return ShardingError(
            what,
            where=f"sw.{self.called}",
            rule=f'mesh={{"{axis}": "{self.given[axis]}"}} is every size that divides the '
            f"dimensions that in_specs cut along {axis!r}.",
            remedy=remedy or f'name the sizes: mesh={{"{axis}": [1, 2, 4, 8]}}',
        )

    def every(self, body: Body) -> Every:
        """Return all sizes, from the program on one device."""
        if not is_sharded(body):
            raise self.error(
                "the program has no shard_map: the compiler partitions it",
                "shardwise explain shows what the compiler sends.",
            )

        def divide(mesh: AbstractMesh) -> bool:
            return all(size % math.prod(mesh.shape[a] for a in axes) == 0 for axes, size in cuts)

        letters = self.letters
        cuts = [
            (tuple(axis for axis in self.given if axis in row), size)
            for row, size in dict.fromkeys(_cuts(body))
            if size  # every size divides 0
        ]
        columns = []
        for axes in letters.values():
            sizes = [size for row, size in cuts if not {*axes}.isdisjoint(row)]
            if not sizes:
                names = " or ".join(map(repr, axes))
                is_cut = any(not {*axes}.isdisjoint(row) for row, _ in _cuts(body))
                kind = "only empty dimensions" if is_cut else "no dimension"
                raise self.error(
                    f"on one device, in_specs cut {kind} of the arguments along {names}",
                    axis=axes[0],
                )
            columns.append(_divisors(math.gcd(*sizes)))
        if math.prod(map(len, columns)) > MOST:
            raise self.error(f"there are {math.prod(map(len, columns))} combinations of sizes")
        rows = (dict(zip(letters, row, strict=True)) for row in itertools.product(*columns))
        every = [
            make_mesh({axis: row.get(size, size) for axis, size in self.given.items()})
            for row in rows
        ]
        # If not even 1 divides, JAX's error on it says why.
        meshes = list(filter(divide, every)) or every[:1]
        open_axes = tuple(axis for axis, size in self.given.items() if is_letter(size))
        if len(meshes) == 1 and divide(meshes[0]):
            raise self.error(
                f"1 is the only size that divides ({self._rule(cuts)})",
                "pass larger arguments, such as a batch that other sizes divide.",
            )
        return Every(self._rule(cuts), tuple(sorted(meshes, key=lambda one: one.size)), open_axes)

    def _rule(self, cuts: Sequence[Cut]) -> str:
        """Return the sizes as text."""
        divided: dict[tuple[str, ...], int] = {}
        for row, size in cuts:
            axes = tuple(axis for axis in row if is_letter(self.given[axis]))
            rest = size // math.prod(self.given[axis] for axis in row if axis not in axes)
            if axes:
                divided[axes] = math.gcd(rest, divided.get(axes, 0))
        divided = {
            axes: size
            for axes, size in divided.items()
            # What divides a part of it divides it too.
            if not any({*axes} < {*more} and size % other == 0 for more, other in divided.items())
        }
        with_fixed = [f"{a}={size}" for a, size in self.given.items() if not is_letter(size)]
        ending = f" with {', '.join(with_fixed)}" * bool(with_fixed)
        groups = [" = ".join(axes) for axes in self.letters.values()]
        if len(groups) == len(divided) == 1 and len(next(iter(divided))) == 1:
            return f"every size of {groups[0]} that divides {next(iter(divided.values()))}{ending}"
        clauses = [f"{' * '.join(axes)} divides {size}" for axes, size in divided.items()]
        return f"every size of {' and '.join(groups)} where {' and '.join(clauses)}{ending}"

    def small(
        self, f: Callable[..., Any], args: tuple[Any, ...], options: tuple[Any, Static]
    ) -> tuple[list[AbstractMesh], str]:
        """Return the meshes of sizes up to 8, and a sentence on those that are not accepted."""
        doing(f"tracing on {words(self.one)}")
        every = self.every(Tracing(f, self.one, *options)(args, {}).program.body)
        few = [one for one in every.meshes if all(one.shape[axis] <= FEW for axis in every.open)]
        if len(few) == 1:
            raise self.error(
                f"it runs the program on sizes from 2 to {FEW}, and none is among {every.rule}"
            )
        refused: dict[AbstractMesh, Exception] = {}
        for one in few:
            doing(f"tracing on {words(one)}")
            with self.refusing(one, refused):
                Tracing(f, one, *options)(args, {})
        every = every.without(refused, [one for one in every.meshes if one not in few])
        self.refuse_one(every, refused)
        return list(every.accepted), every.sentence

    @contextlib.contextmanager
    def refusing(
        self, mesh: AbstractMesh, refused: dict[AbstractMesh, Exception]
    ) -> Iterator[None]:
        """Collect the error of a program that cannot be traced on a mesh."""
        try:
            yield
        except UnsupportedError:
            raise
        except Exception as error:
            if max(mesh.shape[axis] for axes in self.letters.values() for axis in axes) == 1:
                raise
            refused[mesh] = error

    def refuse_one(self, every: Every, refused: Mapping[AbstractMesh, Exception]) -> None:
        """Raise if the program accepts no size but 1, on which there is nothing to prove."""
        if refused and len(every.accepted) == 1:
            sizes = dict(next(iter(refused)).shape)
            raise self.error(
                f"the program accepts no size but 1. {every.sentence}",
                f"mesh={sizes} shows the whole error.",
            ) from next(iter(refused.values()))


def _first_line(error: Exception) -> str:
    kind = "" if isinstance(error, ShardwiseError) else f"{type(error).__name__}: "
    return kind + next(iter(text_of(error).splitlines()), "")


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number."""
    low = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return sorted({*low, *(number // i for i in low)})


def _cuts(body: Body, joined: dict[Atom, frozenset[str]] | None = None) -> Iterator[Cut]:
    """Yield the dimensions that specs cut.

    A result of a `shard_map` may have a size that depends on the mesh, such as a number from each
    device. So a value that depends on one says nothing of the axes along which that is joined.
    """
    joined = {} if joined is None else joined
    for op in (*body.ops, *body.dropped):
        axes = frozenset[str]().union(*(joined.get(atom, ()) for atom in op.ins))
        for inner in op.bodies:
            joined |= dict.fromkeys(inner.ins, axes)
            yield from _cuts(inner, joined)
            axes = axes.union(*(joined.get(atom, ()) for atom in inner.outs))
        if isinstance(op, Split):
            shape = np.shape(op.ins[0].value) if isinstance(op.ins[0], Lit) else op.ins[0].shape
            for size, row in zip(shape, op.placement, strict=True):
                names = tuple(axis.name for axis in row)
                if names and axes.isdisjoint(names):
                    yield names, size
        if isinstance(op, Join):
            axes = axes.union(axis.name for axis in op.axes)
        joined |= dict.fromkeys(op.outs, axes)

"""A wrong program in the search: what it should compute, and how an edited version compares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ... import _jax
from ..._engine.simulate import simulate
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import Gap
from ..._mesh import AbstractMesh, one_device
from ..check import Examined, examine
from ..prove.reading import ReadProgram


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A wrong program, and what it should compute."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    meshes: Sequence[AbstractMesh]
    options: tuple[Any, Static]
    reference: Callable[..., Any] | None
    plain: ReadProgram
    """The definition of right: the original program on one device, or the reference."""
    examined: Examined

    @classmethod
    def of(
        cls,
        examined: Examined,
        f: Callable[..., Any],
        meshes: Sequence[AbstractMesh],
        reference: Any,
        options: tuple[Any, Static],
    ) -> Program:
        """Build it from the results of the check, before anything is edited."""
        ones = one_device(meshes[0])
        args = examined.args
        in_specs, static = options
        options = Tracing(f, ones, in_specs, static).specs_of(args), static
        if examined.reading is not None:
            base = ReadProgram(examined.base.traced, ones, examined.reading)
        elif reference is None:
            base = ReadProgram.of(Tracing(f, ones, *options), ones, args)
        else:
            tracing = Tracing(reference, None, static=static, alone=True)
            base = ReadProgram.of(tracing, ones, args)
        return cls(f, args, meshes, options, reference, base, examined)

    @property
    def hardest(self) -> AbstractMesh:
        """The mesh most likely to expose mistakes: the largest."""
        return self.meshes[-1]

    def read(self, mesh: AbstractMesh, f: Any = None) -> ReadProgram:
        """Trace the program, or an edited `f`, and analyse its values."""
        tracing = Tracing(f or self.f, mesh, *self.options)
        return ReadProgram.of(tracing, mesh, self.args, self.plain)

    def gaps(self, mesh: AbstractMesh, f: Any) -> list[list[Gap]] | None:
        """Return where each result differs from what it should be; None if it may deadlock.

        Devices are followed separately only if nothing else shows that the program is wrong.
        """
        edited = self.read(mesh, f)
        if edited.sites or edited.traced.tree != self.plain.traced.tree:
            return None
        gaps = edited.reading.gaps()
        return [row.gaps for row in edited.compared(self.plain)] if is_open(gaps) else gaps

    def proved(self, f: Any) -> bool:
        """Return whether every result is proved on the other meshes, including one device."""
        meshes = dict.fromkeys([one_device(self.hardest), *self.meshes[:-1]])
        no_gaps = [[] for _ in self.plain.traced.result_paths]
        return all(self.gaps(mesh, f) == no_gaps for mesh in meshes)

    def agrees(self, f: Any) -> bool:
        """Return whether the numbers are right on the largest mesh."""
        return self.examined.agrees(Tracing(f, self.hardest, *self.options))

    def checked(self, f: Any) -> bool:
        """Return whether the numbers are right on every mesh."""
        if self.right is None:
            return False
        verdict = examine(f, self.args, self.meshes, self.right, self.options).verdict
        return verdict.ok and not verdict.limited

    @functools.cached_property
    def right(self) -> Callable[..., Any] | None:
        """The right program as a function that edits do not affect; None if there is none."""
        if self.reference is not None:
            return self.reference
        ones = one_device(self.hardest)
        try:
            simulated = simulate(self.f, mesh=ones)
            traced, shape = jax.make_jaxpr(simulated, return_shape=True)(*self.args)
        except Exception:  # objects or static arguments: numbers are then not compared
            return None
        tree = jax.tree.structure(shape)

        def original(*args: Any) -> Any:
            outs = _jax.evaluate(traced, traced.consts, jax.tree.leaves(args))
            return jax.tree.unflatten(tree, outs)

        return original


def is_open(found: list[list[Gap]]) -> bool:
    """Return whether nothing shows that a result is wrong, but not all are proved."""
    return any(found) and all(gap.kind == "other" for gaps in found for gap in gaps)

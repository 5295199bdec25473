"""A wrong program in the search: what it should compute, and how an edited version compares."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ... import _jax
from ..._engine.simulate import simulate
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import Gap
from ..._mesh import AbstractMesh, one_device
from ..._program import Atom, Body, Lit
from ..check import Examined, examine
from ..prove.reading import ReadProgram

Allowed = frozenset[int]
"""The indices of the results that may have a wrong shape."""

NONE: Allowed = frozenset()


@dataclasses.dataclass(frozen=True, eq=False)
class WrongProgram:
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
    ) -> WrongProgram:
        """Build it from the results of the check, before anything is edited."""
        ones = one_device(meshes[0])
        args = examined.args
        in_specs, static = options
        options = Tracing(f, ones, in_specs, static).specs_of(args), static
        if examined.reading is not None:
            base = ReadProgram(examined.base.traced, ones, examined.reading)
        elif reference is None:
            base = ReadProgram.of(Tracing(f, ones, *options), ones, args).followed()
        else:
            tracing = Tracing(reference, None, static=static, alone=True)
            base = ReadProgram.of(tracing, ones, args).followed()
        return cls(f, args, meshes, options, reference, base, examined)

    @property
    def hardest(self) -> AbstractMesh:
        """The mesh most likely to expose mistakes: the largest."""
        return self.meshes[-1]

    def misshapen(self, body: Body) -> frozenset[int]:
        """Return the indices of the results whose shape is wrong."""
        count = self.plain.traced.tree.num_leaves
        pairs = zip(body.outs[:count], self.plain.body.outs, strict=False)
        return frozenset(i for i, (a, b) in enumerate(pairs) if shape_of(a) != shape_of(b))

    def read(
        self, mesh: AbstractMesh, f: Any, allowed: Allowed | None = NONE
    ) -> ReadProgram | None:
        """Trace an edited program, and analyse its values.

        Return None if it may deadlock or has another structure; or if results have a wrong shape,
        except for those that are `allowed` (None: any), of which at least one must be right then.
        """
        tracing = Tracing(f, mesh, *self.options)
        traced = tracing(self.args, {})
        misshapen = self.misshapen(traced.program.body)
        if traced.tree != self.plain.traced.tree:
            return None
        if misshapen and allowed is not None and not misshapen < allowed:
            return None
        edited = ReadProgram.of(tracing, mesh, self.args, self.plain).followed()
        return None if edited.sites else edited

    def apart(self, edited: ReadProgram, gaps: list[list[Gap]]) -> list[list[Gap]]:
        """Return the gaps where devices are followed separately, if nothing else decides."""
        if not is_open(gaps) or self.misshapen(edited.body):
            return gaps
        return [row.gaps for row in edited.compared(self.plain)]

    def is_proved_on(self, mesh: AbstractMesh, f: Any) -> bool:
        """Return whether every result is proved on one mesh."""
        no_gaps = [[] for _ in self.plain.traced.result_paths]
        edited = self.read(mesh, f)
        return edited is not None and self.apart(edited, edited.reading.gaps()) == no_gaps

    def proved(self, f: Any, known: Sequence[AbstractMesh] = ()) -> bool:
        """Return whether every result is proved on every mesh, including one device.

        `known` are meshes on which all results are proved already.
        """
        every = [self.hardest, one_device(self.hardest), *self.meshes[:-1]]
        meshes = dict.fromkeys(mesh for mesh in every if mesh not in known)
        return all(self.is_proved_on(mesh, f) for mesh in meshes)

    @functools.cached_property
    def is_wrong_alone(self) -> bool:
        """Whether it differs from the reference on one device already."""
        return any(result.on_one_device is not None for result in self.examined.wrong)

    @functools.cached_property
    def factor(self) -> float | None:
        """The factor by which the numbers of a result are too large, if there is one."""
        factors = (result.times for result in self.examined.wrong)
        return next((factor for factor in factors if factor is not None), None)

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


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Return the shape of a value or literal."""
    return np.shape(atom.value) if isinstance(atom, Lit) else atom.shape


def is_open(found: list[list[Gap]]) -> bool:
    """Return whether nothing shows that a result is wrong, but not all are proved."""
    return any(found) and all(gap.kind == "other" for gaps in found for gap in gaps)

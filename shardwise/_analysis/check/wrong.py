"""A result compared with its expected value: whether it is wrong, and facts about how."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ..._program import Collective, Join, Lit, Op, Var, Where
from ..faults import ReducedAgain, nowhere
from .compare import NOTHING, STILL, Change, Tolerance, agree, factor, gaps, is_inexact, off, wide
from .diagnose import (
    Known,
    Origin,
    follows_sharding,
    leads_to,
    origin,
    place,
    relations,
)
from .flow import ancestors
from .lint import maker_of, summed_again
from .relate import Held
from .running import Run, Wanted


@dataclasses.dataclass(frozen=True, eq=False)
class Wrong:
    """One result on one mesh, with what it should be."""

    run: Run
    base: Run
    index: int
    value: Held | None
    wanted: Wanted | None
    limit: Tolerance
    change: Change = STILL
    """How it changes when the arguments are perturbed."""
    structure: bool = False

    @property
    def path(self) -> str:
        """The name of the result."""
        return "result" if self.structure else self.run.paths[self.index]

    @property
    def sizes(self) -> dict[str, int]:
        """The axis sizes of the mesh."""
        assert self.run.mesh is not None
        return dict(self.run.mesh.shape)

    @property
    def mesh(self) -> str:
        """The axis sizes as text."""
        return "{" + ", ".join(f"{name}: {size}" for name, size in self.sizes.items()) + "}"

    @functools.cached_property
    def got(self) -> np.ndarray:
        """The value that JAX returns."""
        assert self.value is not None
        return self.value.first

    @property
    def want(self) -> Wanted:
        """The value that it should be."""
        assert self.wanted is not None
        return self.wanted

    @functools.cached_property
    def right(self) -> bool:
        """Whether it agrees with what it should be on every device."""
        if self.structure or not self.same_type:
            return False
        return not any(mask.any() for mask in self.off_by_device)

    @functools.cached_property
    def off_by_device(self) -> list[np.ndarray]:
        """For each distinct device, the elements that are wrong or differ from the first device.

        Devices whose value is bitwise equal to the first one's are left out.
        """
        assert self.value is not None
        first, *others = self.value.rows
        if first.shape != self.want.value.shape:  # all of it is wrong
            masks = [np.ones(first.shape, bool)]
        else:
            masks = [off(first, self.want.value, self.limit, self.change)]
        nan = is_inexact(first)
        distinct = [row for row in others if not np.array_equal(row, first, equal_nan=nan)]
        return masks + [off(row, first, self.limit, self.change) for row in distinct]

    @property
    def tie(self) -> bool:
        """Whether it is right only because an element that differs is decided by a tie."""
        assert self.value is not None
        exact = Tolerance(eps=self.limit.eps, wide=self.limit.wide)
        masks = [off(row, self.want.value, exact) for row in self.value.rows]
        if not any(mask.any() for mask in masks):
            return False
        gap = max(gaps(row, self.want.value).max(initial=0.0) for row in self.value.rows)
        return not is_inexact(self.want.value) or gap > NOTHING * self.base.scale

    @functools.cached_property
    def on_one_device(self) -> Wrong | None:
        """The same result on one device, if it is wrong there; only a reference can show that."""
        is_single = self.base.mesh is None or self.base.mesh.size == 1
        if self.structure or not is_single:
            return None
        on_one = dataclasses.replace(self, run=self.base, value=self.base.values[self.index])
        return None if on_one.right else on_one

    @property
    def same_type(self) -> bool:
        """Whether shape and dtype are as expected."""
        same_dtype = self.run.dtypes[self.index] == self.want.dtype
        return self.got.shape == self.want.value.shape and same_dtype

    @property
    def kind(self) -> str:
        """Its declared dtype and shape."""
        return f"{self.run.dtypes[self.index]}{list(self.got.shape)}"

    @property
    def not_finite(self) -> bool:
        """Whether it is NaN or infinite where it should be finite."""
        expected, actual = self._finite
        return bool((expected & ~actual).any())

    @property
    def finite_alone(self) -> bool:
        """Whether it is finite where it should be NaN or infinite."""
        expected, actual = self._finite
        return bool((~expected & actual).any())

    @functools.cached_property
    def _finite(self) -> tuple[Any, Any]:
        """Which elements should be finite, and which are; all true where types differ."""
        if self.structure or not self.same_type:
            return np.True_, np.True_
        return np.isfinite(wide(self.want.value)), np.isfinite(wide(self.got))

    @functools.cached_property
    def off(self) -> np.ndarray:
        """The elements that are wrong."""
        return off(self.got, self.want.value, self.limit, self.change)

    @functools.cached_property
    def times(self) -> float | None:
        """The factor by which it is too large, if one factor fits the whole array."""
        if self.structure or not self.same_type or self.apart or self.not_finite:
            return None
        return factor(self.got, self.want.value, self.limit)

    @property
    def slack(self) -> float:
        """The relative uncertainty of that factor."""
        return min(max(16 * self.limit.norm, 1e-5), 0.25)

    @functools.cached_property
    def apart(self) -> bool:
        """Whether devices that should hold equal values differ."""
        return any(mask.any() for mask in self.off_by_device[1:])

    @functools.cached_property
    def origin(self) -> Origin | None:
        """The operation from which it starts to depend on the number of devices."""
        target = self.run.body.outs[self.index] if not self.structure else None
        if not isinstance(target, Var) or not self.same_type:
            return None
        return origin(self.run.body, target, self.related)

    @functools.cached_property
    def related(self) -> Known:
        """How each value on the way to it relates to its twin on one device."""
        target = self.run.body.outs[self.index]
        assert isinstance(target, Var)
        beside = self.run.beside(self.base)
        return relations(self.run.body, target, beside, self.run.twins, self.agree)

    def comes_from(self, op: Op) -> bool:
        """Return whether the result of an operation can be what makes it wrong."""
        body = self.run.body
        target = body.outs[self.index]
        return not isinstance(target, Var) or leads_to(body, target, self.related, op)

    def agree(self, a: Any, b: Any) -> bool:
        """Return whether two arrays are equal within the tolerance of this result."""
        return agree(a, b, self.limit)

    @functools.cached_property
    def reduced_again(self) -> Collective | None:
        """The first `psum` of an already reduced value on the way to this result, if any."""
        if self.structure:
            return None
        path = ancestors(self.run.body, self.run.body.outs[self.index])
        return next((op for op, _ in summed_again(path) if isinstance(op.ins[0], Var)), None)

    @property
    def suspect(self) -> tuple[str, Where] | None:
        """Code and line of the suspicion (`ReducedAgain`) that it confirms, if there is one."""
        return (ReducedAgain.code, self.reduced_again.where) if self.reduced_again else None

    @property
    def written(self) -> bool:
        """Whether it is a literal in the program."""
        return not self.structure and isinstance(self.run.body.outs[self.index], Lit)

    @property
    def where(self) -> Where:
        """The line to report; `nowhere()` for a program that computes nothing."""
        if self.written:
            return nowhere()
        op = self.origin.op if self.origin else self.maker
        return place(op, self.run.body) if op else nowhere()

    @property
    def draw(self) -> Op | None:
        """The random draw that depends on the sharding, if there is one."""
        target = self.run.body.outs[self.index]
        return follows_sharding(self.run.body, self.base.body, target)

    @property
    def maker(self) -> Op | None:
        """The operation that made the result inside the sharded body, if there is one."""
        body = self.run.body
        if self.structure or not body.ops:
            return body.ops[-1] if body.ops else None
        op = maker_of(body, body.outs[self.index], body.ops[-1])
        while isinstance(op, Join):
            inner = maker_of(body, op.ins[0], op)
            if inner is op:
                break
            op = inner
        return op

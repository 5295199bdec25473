"""A result compared with its expected value: whether it is wrong, and facts about how.

The classes of `faults` turn these facts into findings.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._mesh import abstract, words
from ..._program import Body, Collective, Join, Lit, Op, Var, Where, within
from ..._program.liveness import ancestors
from ..faults import nowhere
from ..faults.powers import Powers, Seen, powers, size_words
from ..lift import Run, ValueOnMesh, short_range, wide
from .cause import names
from .compare import (
    NOTHING,
    STILL,
    Movement,
    Tolerance,
    Wanted,
    agree,
    difference,
    factor,
    gaps,
    is_inexact,
    off,
)
from .diagnose import (
    Known,
    follows_sharding,
    is_same_and_off,
    leads_to,
    origin,
    place,
    relations,
)
from .lint import maker_of
from .overflow import Overflow, overflow
from .relate import beside


@dataclasses.dataclass(eq=False)
class Wrong:
    """One result on one mesh, with its expected value."""

    run: Run
    base: Run
    index: int
    value: ValueOnMesh
    want: Wanted
    limit: Tolerance
    movement: Movement = STILL
    """How it changes when the arguments are perturbed."""
    seen: Seen = ()
    """Its factors on all meshes, once all are compared."""

    def __post_init__(self) -> None:
        self.path = self.run.paths[self.index]
        """The name of the result."""
        self.got = self.value.first
        """The value that JAX returns."""
        self.kind = f"{self.run.dtypes[self.index]}{list(self.got.shape)}"
        """Its declared dtype and shape."""
        self.wanted_kind = f"{self.want.dtype}{list(self.want.value.shape)}"
        """The expected dtype and shape."""
        self.same_type = self.kind == self.wanted_kind

    @property
    def mesh(self) -> str:
        """The axis sizes as text."""
        assert self.run.mesh is not None
        return words(abstract(self.run.mesh))

    # --- whether it is wrong

    @property
    def right(self) -> bool:
        """Whether it agrees with its expected value on every device."""
        return self.same_type and not self.count

    @functools.cached_property
    def count(self) -> int:
        """How many elements are wrong, on all distinct devices."""
        return sum(int(mask.sum()) for mask in self.off_by_device)

    @functools.cached_property
    def off_by_device(self) -> list[np.ndarray]:
        """For each distinct device, the elements that are wrong or differ from the first device.

        Devices whose value is bitwise equal to the first one's are left out.
        """
        first, *others = self.value.rows
        if first.shape != self.want.value.shape:  # all of it is wrong
            masks = [np.ones(first.shape, bool)]
        else:
            masks = [off(first, self.want.value, self.limit, self.movement)]
        nan = is_inexact(first)
        distinct = [row for row in others if not np.array_equal(row, first, equal_nan=nan)]
        return masks + [off(row, first, self.limit, self.movement) for row in distinct]

    @property
    def off(self) -> np.ndarray:
        """The elements that are wrong on the first device."""
        return self.off_by_device[0]

    @property
    def apart(self) -> bool:
        """Whether devices that should hold equal values differ."""
        return any(mask.any() for mask in self.off_by_device[1:])

    @functools.cached_property
    def tiny(self) -> bool:
        """Whether the difference is so small that rounding may explain it."""
        gap = max(gaps(row, self.want.value).max(initial=0.0) for row in self.value.rows)
        return is_inexact(self.want.value) and bool(gap <= NOTHING * self.base.scale)

    @functools.cached_property
    def on_one_device(self) -> Wrong | None:
        """The same result on one device, if it is wrong there; only a reference can show that."""
        if self.base.mesh is not None and self.base.mesh.size > 1:
            return None
        on_one = dataclasses.replace(self, run=self.base, value=self.base.values[self.index])
        return None if on_one.right else on_one

    # --- its range

    @functools.cached_property
    def not_finite(self) -> bool:
        """Whether it is NaN or infinite where it should be finite."""
        return self.same_type and _is_finite_alone(self.want.value, self.got)

    @functools.cached_property
    def finite_alone(self) -> bool:
        """Whether it is finite where it should be NaN or infinite."""
        return self.same_type and _is_finite_alone(self.got, self.want.value)

    @property
    def _beyond(self) -> Run:
        """The run in which the result is not finite."""
        return self.run if self.not_finite else self.base

    @property
    def overflow(self) -> Overflow | None:
        """Where a value exceeds its range, on the mesh or on one device."""
        return overflow(self._beyond, self.index)

    @property
    def narrow(self) -> tuple[Any, float] | None:
        """A dtype of the program with a range far below float32's, and its maximum."""
        kind = short_range(self._beyond.body)
        return None if kind is None else (kind, float(jnp.finfo(kind).max))

    @property
    def may_wrap(self) -> str:
        """A question about the integers that the result depends on, if they may wrap around."""
        body, target = self.run.body, self.run.body.outs[self.index]
        dtype = self.run.wrapping(Body(body.ins, ancestors(body, target), [target]))
        if dtype is None:
            return ""
        end = jnp.iinfo(dtype).max
        return f" Do integers of {dtype}, which end at {end}, wrap around where they are added up?"

    # --- how wrong it is

    @property
    def much(self) -> str:
        """How wrong it is, and where it is worst."""
        gap = difference(self.got, self.want.value)
        with np.errstate(all="ignore"):
            gaps = np.nan_to_num(np.abs(wide(self.got) - wide(self.want.value)), nan=np.inf)
        gaps = np.where(self.off, gaps, 0)
        size = f"relative difference {gap:.2g}, largest {float(gaps.max()):.3g}"
        if not gaps.any():  # integers that are equal in float64
            size = "by less than float64 can tell"
        count = int(self.off.sum())
        if not 0 < count < self.off.size:
            return size
        with np.errstate(all="ignore"):
            shares = np.where(self.off, gaps / np.abs(wide(self.want.value)), -1)
        worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
        position = ", ".join(map(str, worst))
        values = self._pair(worst)
        return f"{size}; {count} of {self.off.size} entries, the worst [{position}]: {values}"

    def _pair(self, at: tuple[Any, ...]) -> str:
        """Format one element and its expected value with enough digits to tell them apart."""
        actual, expected = self.got[at], self.want.value[at]
        if not is_inexact(self.want.value):
            return f"{actual} instead of {expected}"
        actual, expected = wide(actual)[()], wide(expected)[()]
        texts = ((f"{actual:.{digits}g}", f"{expected:.{digits}g}") for digits in (4, 9, 17))
        distinct = (pair for pair in texts if pair[0] != pair[1])
        return " instead of ".join(next(distinct, (str(actual), str(expected))))

    @property
    def differs_over(self) -> str:
        """The axes along which devices differ."""
        return names(self.value.axes)

    # --- constant factors

    @functools.cached_property
    def times(self) -> float | None:
        """The factor by which it is too large, if one factor fits the whole array."""
        if not self.same_type or self.apart or self.not_finite:
            return None
        return factor(self.got, self.want.value, self.limit)

    @functools.cached_property
    def _fitting(self) -> list[Powers]:
        if self.times is None:
            return []
        slack = min(max(16 * self.limit.norm, 1e-5), 0.25)
        return powers(self.run.sizes, self.times, self.seen, slack)

    @property
    def multiple(self) -> float | None:
        """The factor, if a product of axis sizes explains it."""
        return self.times if self._fitting and not self.written else None

    @property
    def whose(self) -> str:
        """The axis sizes that may explain it, as text."""
        return ", or ".join(map(size_words, self._fitting))

    @property
    def over(self) -> str:
        """The axes whose sizes may explain it, as written in a collective."""
        return names(dict.fromkeys(name for fit in self._fitting for name in fit))

    @property
    def reduced_by(self) -> str | None:
        """The reduction that is blamed, `psum` or `pmean`, if it is one of them."""
        if self.origin is not None and within(self.origin.source, "pmean"):
            return "pmean"
        return self.origin.name if isinstance(self.origin, Collective) else None

    @staticmethod
    def fraction(times: float) -> str:
        """Format a number below 1 as one over an integer, if it is that."""
        under = round(1 / times)
        return f"1/{under}" if abs(under * times - 1) < 1e-3 else f"{times:.4g}"

    # --- where it comes from

    @functools.cached_property
    def origin(self) -> Op | None:
        """The operation from which it starts to depend on the number of devices."""
        target = self.run.body.outs[self.index]
        if not isinstance(target, Var) or not self.same_type:
            return None
        return origin(self.run.body, target, self.related)

    @property
    def same_at_origin(self) -> bool:
        """Whether the value of `origin` is the same on every device, but wrong."""
        return self.origin is not None and is_same_and_off(self.origin, self.related)

    @functools.cached_property
    def related(self) -> Known:
        """How each value on the way to it relates to its twin on one device."""
        target = self.run.body.outs[self.index]
        assert isinstance(target, Var)
        known = beside(self.run, self.base)
        return relations(self.run.body, target, known, lambda a, b: agree(a, b, self.limit))

    def comes_from(self, op: Op) -> bool:
        """Return whether the result of an operation can be what makes it wrong."""
        body = self.run.body
        target = body.outs[self.index]
        return not isinstance(target, Var) or leads_to(body, target, self.related, op)

    @property
    def written(self) -> bool:
        """Whether it is a literal in the program."""
        return isinstance(self.run.body.outs[self.index], Lit)

    @property
    def where(self) -> Where:
        """The line to report; `nowhere()` for a program that computes nothing."""
        op = self.origin or self.maker
        return place(op, self.run.body) if op and not self.written else nowhere()

    @property
    def maker(self) -> Op | None:
        """The operation that made the result inside the sharded body, if there is one."""
        body = self.run.body
        op = maker_of(body, body.outs[self.index])
        while isinstance(op, Join) and (inner := maker_of(body, op.ins[0])):
            op = inner
        return op

    @property
    def along(self) -> str:
        """The axes along which values agree, as text, if they do not agree along all."""
        if not isinstance(self.origin, Collective) or not self.origin.outs[0].axes:
            return ""
        return f" along {names(self.origin.axes)}"

    # --- random numbers

    @functools.cached_property
    def draw(self) -> tuple[Where, bool] | None:
        """The line of a random draw that depends on the sharding, if there is one.

        With it, whether the inputs of the draw, such as its key, differ between devices.
        """
        body, target = self.run.body, self.run.body.outs[self.index]
        draw = None if self.apart else follows_sharding(body, self.base.body, target)
        return draw and (place(draw, body), any(atom.axes for atom in draw.ins))


def _is_finite_alone(here: np.ndarray, there: np.ndarray) -> bool:
    """Return whether an element is finite here and not there."""
    return bool((np.isfinite(wide(here)) & ~np.isfinite(wide(there))).any())

"""Results beside what they should be: which of them are wrong, and what can be asked of those."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from .._errors import DeadlockError
from .._program import Collective, Join, Lit, Op, Var, Where
from .compare import (
    STILL,
    Movement,
    Tolerance,
    agree,
    difference,
    factor,
    off,
    plainly,
    wide,
)
from .diagnose import (
    Known,
    Origin,
    follows_sharding,
    gradient_before,
    leads_to,
    mean_of_means,
    origin,
    place,
    relations,
)
from .flow import ancestors
from .lint import maker_of
from .relate import Held
from .running import Run
from .verdict import NOWHERE

FITTED_FROM, SURE = 32, 6.0
"""From how many elements on, and how many times what rounding may do, a factor is seen."""

CLOSER = 2
"""How many times closer few elements have to be to a multiple."""

SCATTERED = 16
"""Where no more than one element of a coarse type in so many is off, more runs are made: one of
eight in which it moves may not be among a few."""

SEEN_FROM = 256
"""From how many elements on two errors may be said to point in one direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class Wrong:
    """One result on one mesh, beside what it should be."""

    run: Run
    base: Run
    index: int
    value: Held | None
    want: np.ndarray | None
    limit: Tolerance
    move: Movement = STILL
    """How far rounding moves it."""
    structure: bool = False
    multiple: bool = False
    """Whether it is the multiple of what it should be that its meaning says it is."""

    @property
    def path(self) -> str:
        """The name of the result."""
        return "result" if self.structure else self.run.paths[self.index]

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh."""
        assert self.run.mesh is not None
        return dict(self.run.mesh.shape)

    @property
    def mesh(self) -> str:
        """The same in words."""
        return "{" + ", ".join(f"{name}: {size}" for name, size in self.sizes.items()) + "}"

    @functools.cached_property
    def got(self) -> np.ndarray:
        """What JAX returns."""
        assert self.value is not None
        return self.value.first

    @functools.cached_property
    def right(self) -> bool:
        """Whether there is nothing to say."""
        if self.structure or self.multiple or not self.same_type:
            return False
        return not self.apart and not self.off.any()

    @functools.cached_property
    def on_one_device(self) -> Wrong | None:
        """The same on one device, where it is wrong there already: only a reference shows that."""
        if self.structure:
            return None
        own = dataclasses.replace(self, run=self.base, value=self.base.values[self.index])
        return None if own.right else own

    @property
    def same_type(self) -> bool:
        """Whether shape and dtype are what they should be."""
        assert self.want is not None
        return self.got.shape == self.want.shape and self.got.dtype == self.want.dtype

    @property
    def not_finite(self) -> bool:
        """Whether it is NaN or infinite where it should not be."""
        want, got = self._finite
        return bool((want & ~got).any())

    @property
    def finite_alone(self) -> bool:
        """Whether it is not NaN or infinite where it should be."""
        want, got = self._finite
        return bool((~want & got).any())

    @functools.cached_property
    def _finite(self) -> tuple[Any, Any]:
        """Which elements should be finite, and which are; nothing where the two are not alike."""
        if self.structure or not self.same_type:
            return np.True_, np.True_
        return np.isfinite(wide(self.want)), np.isfinite(wide(self.got))

    @functools.cached_property
    def off(self) -> np.ndarray:
        """The elements that are not what they should be."""
        return off(self.got, self.want, self.limit, self.move)

    @functools.cached_property
    def times(self) -> float | None:
        """The number by which it is too large, if it is one number for the whole array."""
        if self.structure or not self.same_type or self.apart or self.not_finite:
            return None
        assert self.want is not None
        return factor(self.got, self.want, self.limit)

    @property
    def slack(self) -> float:
        """By how much that number may differ from what it is."""
        return min(max(16 * self.limit.norm, 1e-6), 0.25)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether a closer look is not needed to call it wrong."""
        if self.structure or not self.same_type:
            return True
        assert self.value is not None
        rows = self.value.rows if self.move.seen else ()
        return any(plainly(row, self.want, self.limit, self.move) for row in rows)

    @property
    def scattered(self) -> bool:
        """Whether few elements of a coarse type are off, as it may happen by chance."""
        if self.structure or not self.same_type or not self.limit.coarse or not self.move.seen:
            return False
        assert self.want is not None
        assert self.value is not None
        limit, move = self.limit, self.move
        count = max(off(row, self.want, limit, move).sum() for row in self.value.rows)
        return count <= max(1, self.want.size // SCATTERED)

    @functools.cached_property
    def apart(self) -> bool:
        """Whether devices that should hold the same do not."""
        assert self.value is not None
        rows = self.value.rows
        return any(off(row, rows[0], self.limit, self.move).any() for row in rows[1:])

    @property
    def near(self) -> bool:
        """Whether it is right but for what rounding may do, by a coarse measure.

        That is enough where it is known to be right: then only a gross error is looked for.
        """
        if self.structure or not self.same_type or self.limit.given:
            return False
        assert self.value is not None
        return all(agree(row, self.want, self.limit) for row in self.value.rows)

    def is_multiple(self, factor: float | None) -> bool:
        """Whether all elements together are closer to a multiple of what they should be.

        A small factor drowns in the rounding of each element of a coarse type, not in that of all,
        and any factor in that of a few elements, if they nearly cancel.
        """
        if factor is None or self.structure or not self.same_type or self.limit.given:
            return False
        got, want = wide(self.got).ravel(), wide(np.asarray(self.want)).ravel()
        size = float(np.linalg.norm(want))
        if not 0 < size < np.inf or not np.isfinite(got).all():
            return False
        if float(np.linalg.norm(got - want)) > CLOSER * float(np.linalg.norm(got - factor * want)):
            return factor != 1
        if want.size < FITTED_FROM:
            return False
        found = float(np.vdot(want, got).real) / size**2
        spread = float(np.linalg.norm(got - found * want)) / (size * want.size**0.5)
        return abs(found - 1) > SURE * spread and abs(found - factor) < 0.25 * abs(factor - 1)

    def beside(self, other: Run | None) -> tuple[float, float]:
        """How closely it is off in the same direction on another mesh, and how much further.

        The first is a cosine, and 0 where nothing can be said.
        """
        if self.structure or not self.same_type or self.limit.given or other is None:
            return 0.0, 0.0
        try:
            want, there = wide(np.asarray(self.want)), wide(other.values[self.index].first)
        except DeadlockError:  # it is told of that mesh
            return 0.0, 0.0
        if there.shape != want.shape or want.size < SEEN_FROM:
            return 0.0, 0.0
        gaps = wide(self.got) - want, there - want
        here, there = (float(np.linalg.norm(gap)) for gap in gaps)
        if not 0 < here * there < np.inf:
            return 0.0, 0.0
        return float(np.vdot(*gaps).real) / (here * there), there / here

    @functools.cached_property
    def origin(self) -> Origin | None:
        """Where it starts to depend on the number of devices."""
        target = self.run.body.outs[self.index] if not self.structure else None
        if not isinstance(target, Var) or not self.same_type:
            return None
        return origin(self.run.body, target, self.related)

    @functools.cached_property
    def origin_times(self) -> float:
        """The number by which the value is too large that it starts from; 1 if that is none."""
        op = self.origin.op if self.origin else None
        pair = self.run.beside(self.base).get(op.outs[0]) if op else None
        if pair is None or pair[0].first.shape != pair[1].shape:
            return 1.0
        return factor(pair[0].first, pair[1], self.limit) or 1.0

    @functools.cached_property
    def related(self) -> Known:
        """What each value on the way to it is to its twin on one device."""
        target = self.run.body.outs[self.index]
        assert isinstance(target, Var)
        beside = self.run.beside(self.base)
        return relations(self.run.body, target, beside, self.run.twins, self.agree)

    def comes_from(self, op: Op) -> bool:
        """Whether what an operation gives can be what makes it wrong."""
        body = self.run.body
        target = body.outs[self.index]
        return not isinstance(target, Var) or leads_to(body, target, self.related, op)

    def agree(self, a: Any, b: Any) -> bool:
        """Whether two arrays are the same, as far as this result goes."""
        return agree(a, b, self.fine)

    @functools.cached_property
    def fine(self) -> Tolerance:
        """The tolerance at which the cause is looked for."""
        assert self.want is not None
        same = self.same_type
        return self.limit.explaining(difference(self.got, self.want)) if same else self.limit

    @property
    def mean_of_means(self) -> bool:
        """Whether it is a mean of unequal means."""
        body, beside = self.run.body, self.run.beside(self.base)
        return bool(self.origin) and mean_of_means(body, self.origin.op, beside, self.agree)

    @functools.cached_property
    def reduced_again(self) -> Collective | None:
        """The reduction of something already reduced on the way to this result, if there is one."""
        if self.structure:
            return None
        for op in ancestors(self.run.body, self.run.body.outs[self.index]):
            if isinstance(op, Collective) and op.name == "psum" and not op.backward:
                atom = op.ins[0]
                again = [axis for axis in op.axes if axis.size > 1 and axis not in atom.axes]
                if again and isinstance(atom, Var):
                    return op
        return None

    @property
    def suspect(self) -> tuple[str, Where] | None:
        """What reading says of that."""
        return ("SW201", self.reduced_again.where) if self.reduced_again else None

    @property
    def gradient(self) -> Op | None:
        """The last operation of the gradient that it is made from, if it is from one."""
        made = self.origin.op if self.origin else None
        if made is not None and made.backward:
            return made
        again = self.reduced_again
        return gradient_before(self.run.body, again.ins[0]) if again else None

    @property
    def written(self) -> bool:
        """Whether it is a number that the program has, and computes nothing for."""
        return not self.structure and isinstance(self.run.body.outs[self.index], Lit)

    @property
    def where(self) -> Where:
        """The line to name; none for a program that computes nothing."""
        if self.written:
            return NOWHERE
        op = self.origin.op if self.origin else self.maker
        return place(op, self.run.body) if op else NOWHERE

    @property
    def draw(self) -> Op | None:
        """The random numbers that follow the sharding, if there are any."""
        target = self.run.body.outs[self.index]
        return follows_sharding(self.run.body, self.base.body, target)

    @property
    def maker(self) -> Op | None:
        """The operation that made the result inside the sharded body, if there is any at all."""
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

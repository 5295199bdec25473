"""From a wrong result to findings: what is wrong, how much, and where."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._mesh import Axis
from .._program import Collective, Join, Op, Var, Where
from .compare import STILL, Movement, Tolerance, agree, difference, factor, off, plainly, whose
from .diagnose import Origin, ancestors, follows_sharding, mean_of_means, origin, place
from .lint import TWO_WAYS, maker_of
from .relate import Held, share_of
from .verdict import Finding

if TYPE_CHECKING:
    from .running import Run


SEEN_FROM, ALIGNED = 256, 0.9
"""From how many elements on, and how closely, two errors have to point in one direction."""


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

    @property
    def path(self) -> str:
        """The name of the result."""
        return self.run.paths[self.index]

    @property
    def sizes(self) -> dict[str, int]:
        """The mesh."""
        assert self.run.mesh is not None
        return dict(self.run.mesh.shape)

    @functools.cached_property
    def got(self) -> np.ndarray:
        """What JAX returns."""
        assert self.value is not None
        return self.value.first

    @functools.cached_property
    def right(self) -> bool:
        """Whether there is nothing to say."""
        if self.structure or not self.same_type:
            return False
        return not self.apart and not self.off.any()

    @property
    def same_type(self) -> bool:
        """Whether shape and dtype are what they should be."""
        assert self.want is not None
        return self.got.shape == self.want.shape and self.got.dtype == self.want.dtype

    @property
    def not_finite(self) -> bool:
        """Whether it is NaN or infinite where it should not be."""
        finite = np.isfinite(_float(self.want)).all()
        return bool(finite and not np.isfinite(_float(self.got)).all())

    @functools.cached_property
    def off(self) -> np.ndarray:
        """The elements that are not what they should be."""
        return off(self.got, self.want, self.limit, self.move)

    @functools.cached_property
    def plain(self) -> bool:
        """Whether a closer look is not needed to call it wrong."""
        if self.structure or not self.same_type:
            return True
        assert self.value is not None
        rows = self.value.rows if self.move.seen else ()
        return any(plainly(row, self.want, self.limit, self.move) for row in rows)

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

    def seen_beside(self, other: Run | None) -> bool:
        """Whether it is off in the same direction on another mesh, which rounding would not be.

        That is enough where it is known to be wrong. Errors of rounding on two meshes have those on
        one device in common, which makes half of their directions the same, not more.
        """
        if self.structure or not self.same_type or self.limit.given or other is None:
            return False
        want = np.asarray(self.want)
        there = other.values[self.index].first
        if there.shape != want.shape or not np.issubdtype(_float(want).dtype, np.floating):
            return False
        here, there = _float(self.got) - _float(want), _float(there) - _float(want)
        sizes = float(np.linalg.norm(here)) * float(np.linalg.norm(there))
        if want.size < SEEN_FROM or not 0 < sizes < math.inf:
            return False
        return float(np.vdot(here, there)) > ALIGNED * sizes

    @functools.cached_property
    def origin(self) -> Origin | None:
        """Where it starts to depend on the number of devices."""
        if self.structure or not self.same_type:
            return None
        beside = self.run.beside(self.base)
        return origin(self.run.body, self.index, beside, self.agree)

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
    def suspect(self) -> tuple[str, Where] | None:
        """The reduction of something already reduced on the way to this result, if there is one."""
        for op in ancestors(self.run.body, self.run.body.outs[self.index]):
            if isinstance(op, Collective) and op.name == "psum" and not op.backward:
                atom = op.ins[0]
                again = [axis for axis in op.axes if axis.size > 1 and axis not in atom.axes]
                if again and isinstance(atom, Var):
                    return "SW201", op.where
        return None

    @property
    def where(self) -> Where:
        """The line to name."""
        return place(self.origin.op if self.origin else self.maker, self.run.body)

    @property
    def draw(self) -> Op | None:
        """The random numbers that follow the sharding, if there are any."""
        target = self.run.body.outs[self.index]
        return follows_sharding(self.run.body, self.base.body, target)

    @property
    def maker(self) -> Op:
        """The operation that made the result inside the sharded body."""
        body = self.run.body
        op = maker_of(body, body.outs[self.index], body.ops[-1])
        while isinstance(op, Join):
            inner = maker_of(body, op.ins[0], op)
            if inner is op:
                break
            op = inner
        return op


def describe(wrong: Sequence[Wrong]) -> list[Finding]:
    """One finding for each cause: results that fail alike at one line are told together."""
    worst: dict[int, Wrong] = {}
    for one in wrong:
        worst[one.index] = one  # meshes come in order of size
    groups: dict[tuple[str, Where], list[tuple[Wrong, Finding]]] = {}
    for one in worst.values():
        finding = _finding(one)
        groups.setdefault((finding.code, finding.where), []).append((one, finding))
    return [_together(group) for group in groups.values()]


def _together(group: list[tuple[Wrong, Finding]]) -> Finding:
    _, finding = group[0]
    if len(group) == 1:
        return finding
    return dataclasses.replace(
        finding, message=f"{finding.message} (and {len(group) - 1} more results likewise)"
    )


def _finding(one: Wrong) -> Finding:
    code, what, remedy = _what(one)
    mesh = "{" + ", ".join(f"{k}: {v}" for k, v in one.sizes.items()) + "}"
    where = place(one.draw, one.run.body) if code == "SW106" and one.draw else one.where
    return Finding(code, f"{one.path} {what} on {mesh}", where, one.path, remedy, mesh=mesh)


def _what(one: Wrong) -> tuple[str, str, str]:
    if one.structure:
        return "SW108", "has another structure than on one device", "return the same pytree."
    assert one.want is not None
    if not one.same_type:
        return (
            "SW108",
            f"is {one.got.dtype}{list(one.got.shape)} and should be "
            f"{one.want.dtype}{list(one.want.shape)}",
            "look at out_specs: a dimension that is split comes back whole.",
        )
    if one.apart:
        return _apart(one)
    if one.not_finite:
        return "SW107", "is NaN or infinite", "look for an empty or masked shard: 0/0, log(0)."
    return _by_factor(one) or _by_origin(one) or _otherwise(one)


def _apart(one: Wrong) -> tuple[str, str, str]:
    assert one.value is not None
    assert one.want is not None
    lacks = share_of(one.value, one.want, one.agree)
    if lacks:
        names = _names(lacks.axes)
        return (
            "SW104",
            f"is only the first device's share; {lacks.missing} over {names!r} gives the right "
            "result",
            f"return jax.lax.{lacks.missing}(..., {names!r}).",
        )
    if one.origin and one.origin.lacks.share:
        lacks = one.origin.lacks
        names = _names(lacks.axes)
        return (
            "SW104",
            f"is computed from only the first device's share of this value; {lacks.missing} over "
            f"{names!r} gives the whole",
            f"reduce it before it is used: jax.lax.{lacks.missing}(..., {names!r}).",
        )
    names = _names(one.value.axes)
    return (
        "SW105",
        f"differs between devices along {names!r}, though out_specs declare it the same; JAX "
        "returns the first device's",
        f"reduce it over {names!r} (jax.lax.psum, pmean), or declare it split in out_specs.",
    )


def _names(axes: Sequence[Axis]) -> str | tuple[str, ...]:
    return axes[0].name if len(axes) == 1 else tuple(axis.name for axis in axes)


def _by_factor(one: Wrong) -> tuple[str, str, str] | None:
    assert one.want is not None
    times = factor(one.got, one.want, one.limit)
    if times is None:
        return None
    sizes = one.sizes
    slack = max(16 * one.limit.norm, 1e-6)
    made = one.origin.op if one.origin else None
    summed = isinstance(made, Collective) and made.backward
    if axes := whose(times, sizes, slack):
        n = math.prod(sizes[name] for name in axes)
        why = "; autodiff has already summed it over the devices" if summed or one.suspect else ""
        return (
            "SW101",
            f"is {n} times too large, the size of {_axes(axes)}{why}",
            TWO_WAYS if summed or one.suspect else "average instead of summing: jax.lax.pmean.",
        )
    if axes := whose(1 / times, sizes, slack):
        n = math.prod(sizes[name] for name in axes)
        return (
            "SW102",
            f"is 1/{n} of what it should be, 1 over the size of {_axes(axes)}",
            "sum instead of averaging (jax.lax.psum), or divide only once.",
        )
    return None


def _axes(names: Sequence[str]) -> str:
    return " times ".join(f"axis {name!r}" for name in names)


def _by_origin(one: Wrong) -> tuple[str, str, str] | None:
    if one.draw is not None:
        return (
            "SW106",
            f"depends on random numbers that follow the sharding ({much(one)})",
            "draw them for the whole array and split them, or make one key per example from its "
            "global index: jax.random.fold_in(key, index).",
        )
    if one.mean_of_means:
        return (
            "SW103",
            f"is a mean of unequal means ({much(one)})",
            "sum numerators and denominators apart and divide once: "
            "jax.lax.psum(total, axis) / jax.lax.psum(count, axis).",
        )
    return None


def _otherwise(one: Wrong) -> tuple[str, str, str]:
    if one.origin and one.origin.lacks.share:
        lacks = one.origin.lacks
        return (
            "SW109",
            f"depends on the number of devices ({much(one)}): each device uses its own share of "
            "this value",
            f"reduce it before it is used: jax.lax.{lacks.missing}(..., {_names(lacks.axes)!r}).",
        )
    return (
        "SW109",
        f"depends on the number of devices ({much(one)})",
        "this line is the first value that is the same on every device and yet depends on how "
        "many there are: is the right collective there, over the right axis?",
    )


def much(one: Wrong) -> str:
    """By how much it is wrong, and where the most."""
    assert one.want is not None
    gap = difference(one.got, one.want)
    gaps = np.abs(_float(one.got) - _float(one.want))
    said = f"relative difference {gap:.2g}, largest {float(gaps.max()):.3g}"
    count = int(one.off.sum())
    if not 0 < count < one.off.size:
        return said
    with np.errstate(all="ignore"):
        shares = np.where(one.off, gaps / np.abs(_float(one.want)), -1)
    worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
    at = ", ".join(map(str, worst))
    return (
        f"{said}; {count} of {one.off.size} entries, the worst [{at}]: "
        f"{_float(one.got)[worst]:.4g} instead of {_float(one.want)[worst]:.4g}"
    )


def _float(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)

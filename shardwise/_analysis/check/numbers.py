"""Turn a measured wrong result into a finding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import Body, Collective, Op, Var, Where, within
from ..faults import (
    NUMBERS,
    DependsOnDevices,
    Differs,
    Finding,
    FollowsSharding,
    NotFinite,
    NotReference,
    OtherType,
    TooLarge,
    TooSmall,
    grouped,
)
from ..faults.powers import Powers, Seen, Sizes, powers, size_words
from .cause import names
from .compare import difference, wide
from .diagnose import place
from .flow import ancestors
from .overflow import Overflow, overflow, wrapped
from .running import Wanted
from .wrong import Wrong

IN_ORDER = (
    OtherType,
    NotFinite,
    TooLarge,
    TooSmall,
    FollowsSharding,
    Differs,
    DependsOnDevices,
)
"""The faults that numbers can show; the first that fits a result is reported."""


def by_numbers(wrong: Sequence[Wrong], tried: Sequence[Sizes] = ()) -> list[Finding]:
    """Return one finding for each fault that wrong results show.

    `tried` are the meshes on which numbers were compared or proved right.
    """
    worst = {result.index: result for result in wrong}  # meshes come in order of size
    return grouped([_finding(row, factors_of(row, wrong, tried)) for row in worst.values()])


def beyond_reference(wrong: Sequence[Wrong]) -> tuple[list[Finding], list[Wrong]]:
    """Return the findings about results that differ from a reference on one device already.

    Return with them the wrong results, those compared with one device instead.
    """
    findings, rest = {}, []
    for row in wrong:
        if (on_one := row.on_one_device) is not None:
            findings[row.index] = _about(NotReference.from_numbers(Measured(on_one)), on_one)
            expected = Wanted(on_one.got, on_one.run.dtypes[on_one.index])
            row = dataclasses.replace(row, wanted=expected)
        if on_one is None or not row.right:
            rest.append(row)
    return grouped([*findings.values()]), rest


def factors_of(one: Wrong, wrong: Sequence[Wrong], tried: Sequence[Sizes]) -> Seen:
    """Return the factor by which a result is too large on each mesh, where it is one number."""
    rows = [row for row in wrong if row.index == one.index]
    seen: list[tuple[Sizes, float]] = [
        (sizes, 1.0) for sizes in tried if all(sizes != row.sizes for row in rows)
    ]
    return seen + [(row.sizes, row.times) for row in rows if row.times is not None]


def _finding(one: Wrong, seen: Seen) -> Finding:
    """Return the first fault that the numbers show."""
    measured = Measured(one, seen)
    shown = ((fault, fault.from_numbers(measured)) for fault in IN_ORDER)
    fault, finding = next((fault, finding) for fault, finding in shown if finding is not None)
    note = fault.note(measured) if fault is FollowsSharding else ""
    return _about(finding, one, f" on {one.mesh}{note}")


def _about(found: Finding, one: Wrong, tail: str = "") -> Finding:
    message = f"{one.path} {found.message}{tail}"
    return dataclasses.replace(
        found, message=message, leaf=one.path, mesh=one.mesh, evidence=NUMBERS
    )


class Measured:
    """A wrong result, with the measurements that the fault classes need."""

    def __init__(self, wrong: Wrong, seen: Seen = ()):
        self.wrong, self.seen = wrong, seen
        """The wrong result, and its factor on the other meshes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrong, name)

    @property
    def much(self) -> str:
        """How wrong it is, and where it is worst."""
        return much(self.wrong)

    # --- structure and dtype

    @property
    def structure_differs(self) -> str:
        """The results in which the two structures differ."""
        return paths_apart(self.run.paths, self.base.paths)

    @property
    def wanted_kind(self) -> str:
        """The expected dtype and shape."""
        return f"{self.want.dtype}{list(self.want.value.shape)}"

    # --- differences between devices

    @property
    def held_over(self) -> str:
        """The axes along which devices differ."""
        return names(self.wrong.value.axes) if self.wrong.value else ""

    # --- constant factors

    @functools.cached_property
    def _fitting(self) -> list[Powers]:
        row = self.wrong
        return powers(row.sizes, row.times, self.seen, row.slack) if row.times is not None else []

    @property
    def multiple(self) -> float | None:
        """The factor, if a product of axis sizes explains it."""
        return self.wrong.times if self._fitting and not self.wrong.written else None

    @property
    def whose(self) -> str:
        """The axis sizes that may explain it, as text."""
        return ", or ".join(map(size_words, self._fitting))

    @property
    def over(self) -> str:
        """The axes whose sizes may explain it, as written in a collective."""
        axis_names = list(dict.fromkeys(name for fit in self._fitting for name in fit))
        return repr(axis_names[0]) if len(axis_names) == 1 else repr(tuple(axis_names))

    @property
    def summed_before(self) -> bool:
        """Whether the value was the same on all devices before the sum."""
        origin = self.wrong.origin
        is_sum = origin is not None and isinstance(origin.op, Collective) and origin.op.backward
        return is_sum or self.wrong.suspect is not None

    @property
    def reduced_by(self) -> str | None:
        """The reduction that is blamed, `psum` or `pmean`, if it is one of them."""
        op = self.wrong.origin.op if self.wrong.origin else None
        if op is not None and within(op.source, "pmean"):
            return "pmean"
        return op.name if isinstance(op, Collective) else None

    @staticmethod
    def fraction(times: float) -> str:
        """Format a number below 1 as one over an integer, if it is that."""
        under = round(1 / times)
        return f"1/{under}" if abs(under * times - 1) < 1e-3 else f"{times:.4g}"

    # --- ranges

    @property
    def wraps(self) -> tuple[Overflow, bool] | None:
        """Where integers wrap around on only one side, the mesh or one device."""
        return wrapped(self.run, self.base, self.index)

    @property
    def _beyond(self) -> Any:
        """The run in which the result is not finite."""
        return self.run if self.not_finite else self.base

    @property
    def overflow(self) -> Overflow | None:
        """Where a value exceeds its range, on the mesh or on one device."""
        return overflow(self._beyond, self.index)

    @property
    def narrow(self) -> tuple[Any, float] | None:
        """A dtype of the program with a range far below float32's, and its maximum."""
        kind = self._beyond.short_range
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

    # --- random numbers

    @functools.cached_property
    def draw(self) -> Op | None:
        """The random draw that depends on the sharding, if there is one."""
        return None if self.wrong.apart else self.wrong.draw

    @property
    def draw_line(self) -> Where:
        """The line of the random draw."""
        assert self.draw is not None
        return place(self.draw, self.run.body)

    @property
    def own_key(self) -> bool:
        """Whether the inputs of the draw, such as its key, differ between devices."""
        draw = self.draw
        return draw is not None and any(isinstance(a, Var) and bool(a.axes) for a in draw.ins)

    @property
    def along(self) -> str:
        """The axes along which values agree, as text, if they do not agree along all."""
        op = self.wrong.origin.op if self.wrong.origin else None
        if not isinstance(op, Collective) or not op.outs[0].axes:
            return ""
        return f" along {names(op.axes)}"


def paths_apart(here: Sequence[str], there: Sequence[str]) -> str:
    """Describe the results in which two trees differ."""
    parts = []
    for word, paths, others in (("has", here, there), ("lacks", there, here)):
        extra = [name for name in paths if name not in {*others}]
        more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
        parts += [f"it {word} {', '.join(extra[:3])}{more}"] if extra else []
    return ", and ".join(parts) or "the same results in other containers"


def much(one: Wrong) -> str:
    """Describe how wrong a result is, and where it is worst."""
    gap = difference(one.got, one.want.value)
    with np.errstate(all="ignore"):
        gaps = np.nan_to_num(np.abs(wide(one.got) - wide(one.want.value)), nan=np.inf)
    gaps = np.where(one.off, gaps, 0)
    size = f"relative difference {gap:.2g}, largest {float(gaps.max()):.3g}"
    if not gaps.any():  # integers that are equal in float64
        size = "by less than float64 can tell"
    count = int(one.off.sum())
    if not 0 < count < one.off.size:
        return size
    with np.errstate(all="ignore"):
        shares = np.where(one.off, gaps / np.abs(wide(one.want.value)), -1)
    worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
    position = ", ".join(map(str, worst))
    return f"{size}; {count} of {one.off.size} entries, the worst [{position}]: {_pair(one, worst)}"


def _pair(one: Wrong, at: tuple[Any, ...]) -> str:
    """Format one element and its expected value with enough digits to tell them apart."""
    actual, expected = one.got[at], one.want.value[at]
    if not jnp.issubdtype(one.want.value.dtype, jnp.inexact):
        return f"{actual} instead of {expected}"
    actual, expected = wide(actual)[()], wide(expected)[()]
    texts = ((f"{actual:.{digits}g}", f"{expected:.{digits}g}") for digits in (4, 9, 17))
    distinct = (pair for pair in texts if pair[0] != pair[1])
    return " instead of ".join(next(distinct, (str(actual), str(expected))))

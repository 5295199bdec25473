"""From a wrong result to findings: what is wrong, how much, and where."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._mesh import Axis
from ..._program import Body, Collective, Op, Var, Where, walk, within
from .compare import difference, is_inexact, wide
from .diagnose import place
from .flow import ancestors
from .overflow import Overflow, overflow, wrapped
from .powers import Seen, Sizes, powers, said
from .ranges import whole_numbers
from .relate import share_of
from .running import Run, Wanted
from .two_ways import two_ways
from .verdict import NOWHERE, Finding
from .wrong import Wrong


def describe(wrong: Sequence[Wrong], tried: Sequence[Sizes] = ()) -> list[Finding]:
    """One finding for each cause: results that fail alike at one line are told together.

    `tried` are the meshes on which numbers were compared, or proved to be right.
    """
    worst: dict[int, Wrong] = {}
    for one in wrong:
        worst[one.index] = one  # meshes come in order of size
    groups: dict[tuple[str, Where], list[tuple[Wrong, Finding]]] = {}
    for one in worst.values():
        for finding in _findings(one, factors_of(one, wrong, tried)):
            groups.setdefault((finding.code, finding.where), []).append((one, finding))
    return [_together(group) for group in groups.values()]


def factors_of(one: Wrong, wrong: Sequence[Wrong], tried: Sequence[Sizes]) -> Seen:
    """By how much the same result is too large on each mesh, as far as that is one number."""
    own = [other for other in wrong if other.index == one.index]
    seen: list[tuple[Sizes, float]] = [
        (sizes, 1.0) for sizes in tried if all(sizes != other.sizes for other in own)
    ]
    for other in own:
        times = other.times
        if times is not None:
            seen.append((other.sizes, times))
    return seen


def _together(group: list[tuple[Wrong, Finding]]) -> Finding:
    _, finding = group[0]
    if len(group) == 1:
        return finding
    return dataclasses.replace(
        finding,
        message=f"{finding.message} (and {len(group) - 1} more results likewise)",
        likewise=tuple(other.leaf for _, other in group[1:]),
    )


def _findings(one: Wrong, seen: Seen) -> Iterator[Finding]:
    """What is wrong on one device already, and what the sharding does besides."""
    alone = one.on_one_device
    if alone is None:
        yield _finding(one, seen)
        return
    yield _differs_alone(alone)
    own = Wanted(alone.got, alone.run.dtypes[alone.index])
    beside = dataclasses.replace(one, wanted=own)
    if not beside.right:
        yield _finding(beside, ())


def _differs_alone(alone: Wrong) -> Finding:
    if alone.same_type:
        what = f"differs from the reference on one device already ({much(alone)})"
    else:
        what = (
            f"is {alone.kind} on one device already, and the reference gives "
            f"{alone.want.dtype}{list(alone.want.value.shape)}"
        )
    return Finding(
        "SW110",
        f"{alone.path} {what}: that is not the sharding",
        NOWHERE,
        alone.path,
        "compare the two without a mesh first: one of them computes something else. Without "
        "reference=, the program is compared with itself on one device.",
        mesh=alone.mesh,
    )


def _finding(one: Wrong, seen: Seen) -> Finding:
    if not one.structure and one.same_type and (wrap := wrapped(one.run, one.base, one.index)):
        return _wraps(one, *wrap)
    code, what, remedy = _what(one, seen)
    where = place(one.draw, one.run.body) if code == "SW106" and one.draw else one.where
    if code == "SW107" and (far := _overflow(one)):
        alone = "" if one.not_finite else "on one device "
        what, where = f"{what} ({alone}{far} here)", far.where
    accepted = ACCEPTED if code == "SW106" and one.draw and _has_own_key(one.draw) else ""
    message = f"{one.path} {what} on {one.mesh}{accepted}"
    return Finding(code, message, where, one.path, remedy, mesh=one.mesh)


def _wraps(one: Wrong, found: Overflow, here: bool) -> Finding:
    """The finding for integers that wrap around on the mesh, or on one device."""
    on = "" if here else "on one device, and not on the mesh, "
    return Finding(
        "SW107",
        f"{one.path} depends on where integers wrap around ({much(one)}): {on}{found} here on "
        f"{one.mesh}",
        found.where,
        one.path,
        "add up in a wider dtype: x.sum(dtype=jnp.int32), preferred_element_type=jnp.int32, or "
        "x.astype(jnp.int32) before the sum; whole numbers wrap around where they end.",
        mesh=one.mesh,
    )


def _what(one: Wrong, seen: Seen) -> tuple[str, str, str]:
    if one.structure:
        differ = paths_apart(one.run.paths, one.base.paths)
        what = f"has another structure than on one device: {differ}"
        return "SW108", what, "return the same pytree on every mesh."
    if not one.same_type:
        return (
            "SW108",
            f"is {one.kind} and should be {one.want.dtype}{list(one.want.value.shape)}",
            "look at out_specs: a dimension that is split comes back whole."
            if one.got.shape != one.want.value.shape
            else "return the same type: x.astype(...).",
        )
    if one.apart:
        return _apart(one)
    if one.not_finite:
        return "SW107", "is NaN or infinite", _not_finite(one.run)
    if one.finite_alone:
        return "SW107", "is finite where it should be NaN or infinite", _not_finite(one.base)
    if one.written:
        return (
            "SW109",
            f"is a number that the program takes from the mesh or from a shape: {one.got} instead "
            f"of {one.want.value}",
            "is it to be the number of devices or the size of a part? Then it is right to differ, "
            "and is not to be among the results. If not, take it from the shapes outside the "
            "shard_map.",
        )
    return _by_factor(one, seen) or _by_origin(one) or _otherwise(one)


def _overflow(one: Wrong) -> Overflow | None:
    """Where a value leaves its range, on the mesh or on one device, if one does."""
    if one.not_finite or one.finite_alone:
        return overflow(one.run if one.not_finite else one.base, one.index)
    return None


def _not_finite(run: Run) -> str:
    kind = run.short_range
    if kind is None:
        return "look for an empty or masked shard: 0/0, log(0)."
    most = float(jnp.finfo(kind).max)
    return (
        f"look for a sum that leaves the range of {kind} ({most:g}) and add it up in float32, or "
        "for an empty or masked shard: 0/0, log(0)."
    )


def _apart(one: Wrong) -> tuple[str, str, str]:
    assert one.value is not None
    lacks = share_of(one.value, one.want.value, one.agree)
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


def _by_factor(one: Wrong, seen: Seen) -> tuple[str, str, str] | None:
    times = one.times
    if times is None:
        return None
    fitting = powers(one.sizes, times, seen, one.slack)
    if not fitting:
        return None
    whose = ", or ".join(map(said, fitting))
    names = list(dict.fromkeys(name for own in fitting for name in own))
    over = repr(names[0]) if len(names) == 1 else repr(tuple(names))
    summing = f"sum instead of averaging (jax.lax.psum over {over}), or divide only once."
    averaging = f"average instead of summing: jax.lax.pmean(..., {over})."
    averaged = one.origin is not None and within(one.origin.op.source, "pmean")
    # The sum in a mean is larger than on one device, and no divisor for that.
    divisor = min(one.origin_times, 1.0) if averaged else one.origin_times
    if times < 1:
        what = f"is {_fraction(times)} of what it should be, {whose}"
        if divisor > 1:
            what += f"; what is divided by is {divisor:.4g} times too large, since here"
        return "SW102", what, summing if divisor <= 1 else averaging
    if divisor < 1:
        what = f"is {times:.4g} times too large, {whose}; what is divided by is "
        what += f"{_fraction(divisor)} of what it should be, since here"
        return "SW101", what, summing
    summed = bool(one.origin) and isinstance(one.origin.op, Collective) and one.origin.op.backward
    why, remedy = "", averaging
    if summed or one.suspect:
        why = "; autodiff has already summed it over the devices"
        remedy = two_ways(one.gradient, over)
        if one.gradient is None:
            why = "; every device has the same value before the sum"
            remedy = f"leave the sum out, or average: jax.lax.pmean(..., {over})."
    return "SW101", f"is {times:.4g} times too large, {whose}{why}", remedy


def _fraction(times: float) -> str:
    under = round(1 / times)
    return f"1/{under}" if abs(under * times - 1) < 1e-3 else f"{times:.4g}"


def _by_origin(one: Wrong) -> tuple[str, str, str] | None:
    if one.draw is not None:
        return ("SW106", *_random(one, one.draw))
    if one.mean_of_means:
        return (
            "SW103",
            f"is a mean of unequal means ({much(one)})",
            "sum numerators and denominators separately, and divide once: "
            "jax.lax.psum(total, axis) / jax.lax.psum(count, axis).",
        )
    return None


def paths_apart(here: Sequence[str], there: Sequence[str]) -> str:
    """Say in which results two trees differ."""
    rows = (("has", here, there), ("lacks", there, here))
    parts = []
    for word, own, other in rows:
        names = [name for name in own if name not in {*other}]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        parts += [f"it {word} {', '.join(names[:3])}{more}"] if names else []
    return ", and ".join(parts) or "the same results in other containers"


def _random(one: Wrong, draw: Op) -> tuple[str, str]:
    """What is wrong with random numbers: a key of its own on each device, or one key on all."""
    follows = "depends on random numbers that follow the sharding"
    whole = "draw them for the whole array and keep the part of this device"
    if _has_own_key(draw):
        return (
            f"{follows}: each device draws with a key of its own, so another number of devices "
            f"draws other numbers ({much(one)})",
            f"accept it with that comment, or compare what does not depend on the numbers, with "
            f"reference= and rtol=. For the same numbers on any mesh, {whole}.",
        )
    return (
        f"{follows}: every device draws the same ones, with one key ({much(one)})",
        f"{whole}, or make one key per example from its global index: "
        "jax.random.fold_in(key, index).",
    )


def _has_own_key(draw: Op) -> bool:
    """Whether what a draw is made from differs between devices."""
    return any(isinstance(atom, Var) and bool(atom.axes) for atom in draw.ins)


ACCEPTED = ". If that is meant, accept it: `# shardwise: ignore[SW106]` at the end of this line"


def _otherwise(one: Wrong) -> tuple[str, str, str]:
    if one.origin and one.origin.lacks.share:
        lacks = one.origin.lacks
        return (
            "SW109",
            f"depends on the number of devices ({much(one)}): each device uses its own share of "
            "this value",
            f"reduce it before it is used: jax.lax.{lacks.missing}(..., {_names(lacks.axes)!r}).",
        )
    if one.origin and not one.origin.same:
        return (
            "SW109",
            f"depends on the number of devices ({much(one)}): it differs first at this line",
            "put together from all devices (in a loop, at its last turn), this line's value is the "
            "first on the way that is not what one device has there. Is the line right for a whole "
            "that comes in parts, one on each device or one at each turn, and are there as many "
            "turns as parts?",
        )
    return (
        "SW109",
        f"depends on the number of devices ({much(one)})",
        f"this line is the first value that is the same on every device{_along(one)} and yet "
        "depends on how many there are: is the right collective there, over the right axis?"
        f"{_wrapped(one)}",
    )


def _along(one: Wrong) -> str:
    """Along which axes all devices have the same, if they do not along all."""
    op = one.origin.op if one.origin else None
    if not isinstance(op, Collective) or not op.outs[0].axes:
        return ""
    return f" along {_names(op.axes)!r}"


def _wrapped(one: Wrong) -> str:
    """A question about the whole numbers that the result is made of, if it is of any."""
    body, target = one.run.body, one.run.body.outs[one.index]
    kind = whole_numbers(Body(body.ins, ancestors(body, target), [target]))
    if kind is None:
        return ""
    most = jnp.iinfo(kind).max
    if _largest_sum(one.run) <= most:
        return ""
    return f" Do whole numbers of {kind}, which end at {most}, wrap around where they are added up?"


def _largest_sum(run: Run) -> float:
    """About how large sums of integers can become: what is given, times how many are added up."""
    given = [np.asarray(x) for x in run.traced.plain if not _jax.is_key(jax.typeof(x).dtype)]
    whole = [x for x in given if x.size and not is_inexact(x) and x.dtype != np.bool_]
    largest = max((float(np.abs(x.astype(np.float64)).max()) for x in whole), default=1.0)
    sizes = [math.prod(var.shape) for op in walk(run.body.ops) for var in op.outs]
    return max(1.0, largest) * max(sizes, default=1) * (run.mesh.size if run.mesh else 1)


def much(one: Wrong) -> str:
    """By how much it is wrong, and where the most."""
    gap = difference(one.got, one.want.value)
    with np.errstate(all="ignore"):
        gaps = np.nan_to_num(np.abs(wide(one.got) - wide(one.want.value)), nan=np.inf)
    gaps = np.where(one.off, gaps, 0)
    said = f"relative difference {gap:.2g}, largest {float(gaps.max()):.3g}"
    if not gaps.any():  # whole numbers that are one and the same in float64
        said = "by less than float64 can tell"
    count = int(one.off.sum())
    if not 0 < count < one.off.size:
        return said
    with np.errstate(all="ignore"):
        shares = np.where(one.off, gaps / np.abs(wide(one.want.value)), -1)
    worst = np.unravel_index(int(np.nanargmax(shares)), shares.shape)
    at = ", ".join(map(str, worst))
    return f"{said}; {count} of {one.off.size} entries, the worst [{at}]: {_pair(one, worst)}"


def _pair(one: Wrong, at: tuple[Any, ...]) -> str:
    """One element and what it should be, with as many digits as tell them apart."""
    got, want = one.got[at], one.want.value[at]
    if not jnp.issubdtype(one.want.value.dtype, jnp.inexact):
        return f"{got} instead of {want}"
    got, want = wide(got)[()], wide(want)[()]
    texts = ((f"{got:.{digits}g}", f"{want:.{digits}g}") for digits in (4, 9, 17))
    apart = (pair for pair in texts if pair[0] != pair[1])
    return " instead of ".join(next(apart, (str(got), str(want))))

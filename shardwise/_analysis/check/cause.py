"""The cause of a wrong result, in words: what it is instead, since which line, and the remedy.

Meaning says where two programs part (`Gap`); here that becomes a finding that a colleague could
have written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, TypeGuard

from ..._meaning import Coef, Gap, Mistake, below
from ..._mesh import Axis
from ..._program import Collective, Join, Leaf, Lit, Op, Where
from .diagnose import line_of
from .own_mean import around_own_mean
from .powers import Seen, Sizes
from .times import names, times
from .verdict import NOWHERE, Finding


def cause(gap: Gap, leaf: str, axes: Sequence[Axis], mesh: str, seen: Seen = ()) -> Finding:
    """The finding for one place where a result parts from what it should be.

    `seen` has the factor at this place on every mesh that was read (`ratios`).
    """
    if gap.kind == "times" and gap.ratio is not None:
        found = times(gap, tuple(axes), seen)
    elif gap.kind == "mistake" and gap.mistake is not None:
        found = _mistake(gap.mistake, gap.ratio)
    elif gap.kind in ("first", "moved") and gap.stray is not None:
        found = _joined(gap, gap.stray)
    else:
        found = _unlike(gap, mesh)
    return dataclasses.replace(found, leaf=leaf, mesh=mesh, message=f"{leaf} {found.message}")


def ratios(gap: Gap, known: Iterable[tuple[Sizes, Sequence[Gap]]]) -> Seen:
    """The factor at one place on each mesh, from where the result parts there.

    Where the result parts further up on a mesh, it is not known there.
    """
    found: list[tuple[Sizes, Fraction]] = []
    for sizes, own in known:
        same = next((one for one in own if one.term is gap.term), None)
        if same is not None and same.ratio is not None:
            found.append((sizes, Fraction(same.ratio)))
        elif not any(gap.term in below(one.term) for one in own):
            found.append((sizes, Fraction(1)))
    return found


def _mistake(mistake: Mistake, ratio: Coef | None) -> Finding:
    if not mistake.axes:
        return Finding("SW409", f"could not be followed: {mistake.reason}", mistake.op.where)
    mistake = mistake.used or mistake
    over = names(mistake.axes)
    where = line_of(mistake.born or mistake.op)
    gradient = mistake.born is not None and mistake.born.backward
    apart = where.function != mistake.op.where.function and not isinstance(mistake.op, Join)
    if gradient and apart and not mistake.op.differentiated:
        where = mistake.op.where  # the line of the loss says nothing of who takes its gradient
    if isinstance(mistake.op, Join):
        return _returned(mistake, mistake.op, ratio, where)
    if mistake.extreme:
        return Finding(
            "SW405",
            f"uses each device's own maximum or minimum over {over} as if it were the whole: "
            f"{mistake.reason}",
            where,
            remedy=_combined(over, mistake.exponent),
        )
    if mistake.op.backward and mistake.born is not None and mistake.born.backward:
        return _gradient(mistake, mistake.born, over)
    if around := around_own_mean(mistake):
        return _variance(around, over, where)
    found = _used(mistake, mistake.op, mistake.reason, where)
    if not mistake.reason.startswith("division by"):
        return found
    return dataclasses.replace(found, remedy=_divided(mistake, over))


def _divided(mistake: Mistake, over: str) -> str:
    """What to do where something is divided by a share: it may be one itself, or a whole."""
    op = mistake.op
    divides = isinstance(op, Leaf) and op.name == "div"
    if divides and not mistake.owed[0] & {*mistake.axes}:
        return (
            f"sum only what it is divided by: x / jax.lax.psum(..., {over}), or pmean if it is a "
            "mean. What is divided is no share of a sum, and stays as it is."
        )
    return (
        "sum numerator and denominator separately, and divide once: "
        f"jax.lax.psum(total, {over}) / jax.lax.psum(count, {over})."
    )


def _used(mistake: Mistake, by: Op, reason: str, where: Where) -> Finding:
    """A share that is used as if it were the whole."""
    over = names(mistake.axes)
    used = f" at {by.where}" if by.where.line != where.line else ""
    return Finding(
        "SW405",
        f"uses each device's own share of a sum over {over} as if it were the whole{used}: "
        f"{reason}",
        where,
        remedy=f"add the shares up first: jax.lax.psum(..., {over}), or pmean if they are means.",
    )


def _gradient(mistake: Mistake, born: Op, over: str) -> Finding:
    """A share of a gradient that goes on as if it were the whole, in a backward pass unchecked."""
    used = f", at {mistake.op.where}" if mistake.op.where.line != born.where.line else ""
    return Finding(
        "SW405",
        f"is made with a gradient that is each device's share of a sum over {over}: that of what "
        f"goes in here, which the backward pass uses as if it were the whole{used}",
        born.where,
        remedy=f"sum it in the backward pass: hand the value over through a jax.custom_vjp whose "
        f"backward function is jax.lax.psum(gradient, {over}); or leave check_vma on, where "
        "autodiff sums it.",
    )


def _joins_parts(maker: Op | None) -> TypeGuard[Leaf]:
    """Whether a share was made by putting one to something else."""
    arrays = isinstance(maker, Leaf) and [a for a in maker.ins if not isinstance(a, Lit)]
    return bool(arrays) and len(arrays) == 2


def _variance(of: Leaf, over: str, where: Where) -> Finding:
    """A variance around the mean of a device's own part: neither psum nor pmean mends that."""
    dims = tuple(of.params["axes"])
    along = str(dims[0] if len(dims) == 1 else dims) if of.outs[0].shape else ""
    kept = along if dims == tuple(range(len(dims))) else f"{along}, keepdims=True"
    return Finding(
        "SW405",
        f"is made with a variance around each device's own mean, not around the mean over {over}: "
        "the square comes before the means are averaged",
        where,
        remedy="subtract the mean of all before squaring:\n"
        f"    mean = jax.lax.pmean(x.mean({kept}), {over})\n"
        f"    var = jax.lax.pmean(((x - mean) ** 2).mean({along}), {over})\n"
        "The mean of the devices' own variances leaves out how far their means are apart.",
    )


def _combined(over: str, exponent: bool) -> str:
    """How maxima are combined, in a logsumexp so that it can be differentiated too.

    JAX has no rule for pmax.
    """
    if not exponent:
        return (
            f"combine them first: jax.lax.pmax(..., {over}) of maxima, jax.lax.pmin(..., {over}) "
            "of minima."
        )
    return (
        "combine them first, here a maximum of rows (pmin for a minimum):\n"
        f"    m = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(x, -1)), {over})\n"
        "With it the logsumexp of all parts is:\n"
        f"    m + jnp.log(jax.lax.psum(jnp.sum(jnp.exp(x - m[..., None]), -1), {over}))"
    )


def _returned(mistake: Mistake, join: Join, ratio: Coef | None, where: Where) -> Finding:
    """A result that is still a share: of a sum, of a mean or of a maximum."""
    over = names(mistake.axes)
    same = set(mistake.axes) <= set(join.replicated)
    if not same and not mistake.extreme and _joins_parts(mistake.maker):
        return _used(mistake, mistake.maker, "parts of an array meet it", where)
    if same and ratio not in (None, 1, math.prod(axis.size for axis in mistake.axes)):
        return _differs(over, join)  # no sum of them is the result
    reduce, what = "psum", f"share of a sum over {over}"
    remedy = "add the shares up before they are returned"
    if same and ratio is None and not mistake.extreme:
        return Finding(
            "SW403",
            f"is made with only the first device's share of a sum over {over}",
            where,
            remedy=f"add the shares up, before anything is added to them: jax.lax.psum(..., {over})"
            ", or pmean if each is a mean of its own part.",
        )
    if mistake.extreme:
        reduce, what = "pmax", f"own maximum or minimum, not that over {over}"
        remedy = "combine them before they are returned, with pmax or pmin"
    elif ratio == math.prod(axis.size for axis in mistake.axes):
        reduce, what = "pmean", f"own mean, not the mean over {over}"
        remedy = "average them before they are returned"
    is_only = "is only the first device's"
    if not same:
        is_only = "is put together from each device's"
        remedy += ", and leave the axis out of out_specs"
    return Finding(
        "SW403", f"{is_only} {what}", where, remedy=f"{remedy}: jax.lax.{reduce}(..., {over})."
    )


def _joined(gap: Gap, op: Op) -> Finding:
    over = names(gap.axes)
    if gap.kind == "moved":
        return Finding(
            "SW407",
            f"is split over {over} along another dimension than out_specs declare",
            line_of(op),
            remedy="name the axis in out_specs at the dimension that is split.",
        )
    return _differs(over, op)


def _differs(over: str, op: Op) -> Finding:
    return Finding(
        "SW406",
        f"differs between devices along {over}, though out_specs declare it the same; JAX returns "
        "the first device's",
        line_of(op),
        remedy=f"reduce it over {over} (jax.lax.psum, pmean), or declare it split in out_specs.",
    )


def _unlike(gap: Gap, mesh: str) -> Finding:
    op = gap.stray
    if gap.filled is not None:
        rows, filled = gap.filled
        return Finding(
            "SW409",
            f"could not be related to what it is on one device: {rows} rows do not divide over "
            f"{mesh}, so they are filled up to {filled}, and no rule leaves out again what is "
            "filled up",
            NOWHERE,
            remedy=f"prove it with a batch that divides ({filled} rows here); sw.check compares "
            "the numbers of this one.",
        )
    why = "no rule leads from one to the other"
    if gap.long:
        why = "it is too long to take apart"
    elif isinstance(op, Leaf | Collective):
        why = f"no rule says what {op.name} gives here"
    return Finding(
        "SW409",
        f"could not be related to what it is on one device: {why}",
        op.where if op is not None else NOWHERE,
        remedy="sw.check compares numbers instead.",
    )


def grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Each cause once: the result that shows it first, and how many more do."""
    kept: dict[Any, list[Finding]] = {}
    for finding in findings:
        kept.setdefault((finding.code, finding.where, finding.certain), []).append(finding)
    told = []
    for same in kept.values():
        leaves = dict.fromkeys(finding.leaf for finding in same)
        others = tuple(leaf for leaf in leaves if leaf != same[0].leaf)
        count = len(others)
        more = f"; {count} more result{'s' * (count != 1)} likewise" if others else ""
        told.append(dataclasses.replace(same[0], message=same[0].message + more, likewise=others))
    return told

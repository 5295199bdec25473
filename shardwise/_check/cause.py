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

import numpy as np

from .._meaning import Coef, Gap, Mistake, Step, below
from .._mesh import Axis
from .._program import Collective, Join, Leaf, Lit, Op, Where, within
from .diagnose import line_of
from .own_mean import around_own_mean
from .powers import Powers, Seen, Sizes, once, powers, said
from .two_ways import two_ways
from .verdict import Finding


def cause(gap: Gap, leaf: str, axes: Sequence[Axis], mesh: str, seen: Seen = ()) -> Finding:
    """The finding for one place where a result parts from what it should be.

    `seen` has the factor at this place on every mesh that was read (`ratios`).
    """
    if gap.kind == "times" and gap.ratio is not None:
        found = _times(gap, tuple(axes), seen)
    elif gap.kind == "mistake" and gap.mistake is not None:
        found = _mistake(gap.mistake, gap.ratio)
    elif gap.kind in ("first", "moved") and gap.stray is not None:
        found = _joined(gap, gap.stray)
    else:
        found = _unlike(gap, mesh)
    return dataclasses.replace(found, leaf=leaf, mesh=mesh, message=f"{leaf} {found.message}")


def names(axes: Sequence[Axis]) -> str:
    """Axes as one writes them in a collective: `'data'` or `('data', 'model')`."""
    own = [axis.name for axis in axes]
    return repr(own[0]) if len(own) == 1 else repr(tuple(own))


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


def _times(gap: Gap, axes: tuple[Axis, ...], seen: Seen) -> Finding:
    ratio = Fraction(gap.ratio or 0)
    counted = [step for step in gap.steps if step.kind == "counted"]
    fitting = powers({axis.name: axis.size for axis in axes}, ratio, seen)
    own = _most_likely(gap, fitting)
    if counted and (not fitting or _is_in(counted[-1], own)):
        return _counted(counted[-1])
    over = tuple(axis for axis in axes if axis.name in own)
    if own and once(own) and (len(fitting) == 1 or _explained(gap, own)):
        return _too_large(gap, ratio, over)
    if own and once(own, -1) and (len(fitting) == 1 or _explained(gap, own)):
        return _too_small(gap, ratio, over)
    why = f": {', or '.join(map(said, fitting))}" if fitting else ""
    steps = [step for step in gap.steps if step.axis is None or _is_in(step, own)] or gap.steps
    where = steps[0].op if steps else gap.stray
    return Finding(
        "SW401" if ratio > 1 else "SW402",
        f"{_made_of(gap)}is {_number(ratio)} times what it is on one device{why}",
        line_of(where) if where is not None else _nowhere(),
        remedy="look at what is counted, summed and averaged on the way, over which axes.",
    )


def _most_likely(gap: Gap, fitting: Sequence[Powers]) -> Powers:
    """Of several axes that fit, those over which something is known to have happened."""
    counted = [step for step in gap.steps if step.kind == "counted"]
    by_count = (own for own in fitting if counted and _is_in(counted[-1], own))
    by_step = (own for own in fitting if _explained(gap, own))
    return next(by_count, None) or next(by_step, None) or next(iter(fitting), {})


def _is_in(step: Step, own: Powers) -> bool:
    return step.axis is not None and own.get(step.axis.name, 0) > 0


def _explained(gap: Gap, own: Powers) -> bool:
    """Whether something is known to have happened over each of these axes."""
    return own.keys() <= {step.axis.name for step in gap.steps if step.axis is not None}


def _made_of(gap: Gap) -> str:
    """New params are not n times what they should be: the gradient in them is."""
    return "" if gap.whole else "is made from a value that "


def _steps(gap: Gap, kind: str, axes: Sequence[Axis] = ()) -> list[Step]:
    own = [step for step in gap.steps if step.kind == kind]
    return [step for step in own if not axes or step.axis in axes]


def _too_large(gap: Gap, ratio: Fraction, axes: tuple[Axis, ...]) -> Finding:
    head = f"{_made_of(gap)}is {_number(ratio)} times what it is on one device: "
    over = names(axes)
    paid, again = _steps(gap, "paid", axes), _steps(gap, "times", axes)
    paid = paid or _steps(gap, "blocks", axes)  # each device has one element: nothing to add up
    auto = next((step for step in paid if step.op.backward), None)
    summed_again = [step for step in again if not within(step.op.source, "pmean")]
    loss, seeded = _steps(gap, "reduced"), _steps(gap, "seeded", axes)
    if auto is not None and not summed_again and loss:
        return Finding(
            "SW401",
            f"{head}so is the loss that is differentiated, since this line",
            loss[0].op.where,
            remedy=f"average it: jax.lax.pmean(..., {over}); or divide its sum by the number of "
            "all, not of one device's.",
        )
    if auto is not None and not summed_again:
        idle = next((step for step in again if step.order > auto.order), None)
        tail = f"; the pmean at {idle.op.where} averages equal values" if idle else ""
        return Finding(
            "SW401",
            f"{head}autodiff sums this gradient over {over}, and each device's loss is a mean over "
            f"its own part{tail}",
            line_of(auto.op),
            remedy=two_ways(auto.op, over),
        )
    if summed_again:
        return Finding(
            "SW401",
            f"{head}it is summed over {over} although every device has the same value",
            summed_again[-1].op.where,
            remedy=f"leave the sum out, or average: jax.lax.pmean(..., {over}).",
        )
    if paid and auto is None and seeded:
        return Finding(
            "SW401",
            f"{head}what is differentiated is summed over {over} here, with check_vma=False, so "
            f"that its derivative is summed over {over} too, before the sum at "
            f"{paid[-1].op.where}",
            seeded[-1].op.where,
            remedy="differentiate each device's own part and sum afterwards; or leave check_vma "
            "on, where autodiff sums the gradient once, and leave the other sum out.",
        )
    scaled = [step for step in _steps(gap, "scaled") if paid and step.order > paid[-1].order]
    by_hand = [step for step in scaled if not within(step.op.source, "pmean")]
    averaged = all(within(step.op.source, "pmean") for step in paid)
    if by_hand and (averaged or _divides(by_hand[-1].op, 1 / ratio)):
        return Finding(
            "SW401",
            f"{head}it is {'averaged' if averaged else 'summed'} over {over} at "
            f"{paid[-1].op.where}, and multiplied by the number of devices here",
            by_hand[-1].op.where,
            remedy="leave the number of devices out.",
        )
    if scaled and Fraction(paid[-1].coef).denominator == 1:
        return Finding(
            "SW401",
            f"{head}a sum over {over} is divided by what one device has",
            scaled[-1].op.where,
            remedy=f"divide by the number of all, or sum it too: jax.lax.psum(count, {over}).",
        )
    if paid:
        return Finding(
            "SW401",
            f"{head}it is summed over {over}, where each device's value is already a mean over its "
            "own part",
            paid[-1].op.where,
            remedy=f"average instead of summing: jax.lax.pmean(..., {over}).",
        )
    last = gap.steps[-1].op.where if gap.steps else _nowhere()
    return Finding(
        "SW401",
        f"{head}{said(dict.fromkeys((axis.name for axis in axes), 1))}",
        last,
        remedy=f"look at what is counted, summed and averaged over {over} on the way.",
    )


def _too_small(gap: Gap, ratio: Fraction, axes: tuple[Axis, ...]) -> Finding:
    over = names(axes)
    head = f"{_made_of(gap)}is 1/{_number(1 / ratio)} of what it is on one device: "
    scaled, paid = _steps(gap, "scaled"), _steps(gap, "paid", axes)
    averaged = [step for step in paid if within(step.op.source, "pmean")]
    by_hand = [step for step in scaled if not within(step.op.source, "pmean")]
    divided = [step for step in by_hand if _divides(step.op, 1 / ratio)]
    late = [step for step in divided if averaged and step.order > averaged[-1].order]
    if late:
        return Finding(
            "SW402",
            f"{head}it is averaged over {over} at {averaged[-1].op.where}, and divided by the "
            "number of devices again",
            late[-1].op.where,
            remedy="divide only once.",
        )
    if divided and not averaged:
        return Finding(
            "SW402",
            f"{head}it is divided by the number of devices along {over} here",
            divided[-1].op.where,
            remedy="leave the division out.",
        )
    if by_hand and paid and not averaged and by_hand[-1].order > paid[-1].order:
        return Finding(
            "SW402",
            f"{head}it is summed over {over} at {paid[-1].op.where}, and what it is divided by "
            "here grows too fast with the number of devices",
            by_hand[-1].op.where,
            remedy=f"leave out one factor jax.lax.axis_size({over}).",
        )
    last = averaged or paid or [step for step in scaled if step not in by_hand]
    if not last:
        return Finding(
            "SW402",
            f"{head}{said(dict.fromkeys((axis.name for axis in axes), -1))}",
            gap.steps[0].op.where if gap.steps else _nowhere(),
            remedy=f"look at what is averaged or divided over {over} on the way.",
        )
    return Finding(
        "SW402",
        f"{head}it is averaged over {over}, where each device has a share of a sum",
        last[-1].op.where,
        remedy=f"sum instead of averaging: jax.lax.psum(..., {over}).",
    )


def _divides(op: Op, number: Fraction) -> bool:
    """Whether an operation divides by this very number, or multiplies by one over it."""
    if not isinstance(op, Leaf) or op.name not in ("div", "mul") or len(op.ins) != 2:
        return False
    by = [np.asarray(a.value) for a in op.ins if isinstance(a, Lit)]
    wanted = float(number if op.name == "div" else 1 / number)
    return any(bool((abs(one / wanted - 1) < 1e-6).all()) for one in by)


def _counted(step: Step) -> Finding:
    assert step.axis is not None
    n, over = step.axis.size, repr(step.axis.name)
    return Finding(
        "SW404",
        f"counts a value {n} times: every device has it whole and adds it here, before the sum "
        f"over {over}",
        step.op.where,
        remedy=f"add it after the sum, or divide it by jax.lax.axis_size({over}).",
    )


def _mistake(mistake: Mistake, ratio: Coef | None) -> Finding:
    if not mistake.axes:
        return Finding("SW409", f"could not be followed: {mistake.reason}", mistake.op.where)
    mistake = mistake.used or mistake
    over = names(mistake.axes)
    where = line_of(mistake.born or mistake.op)
    if not isinstance(mistake.op, Join) and where.function != mistake.op.where.function:
        # Made inside a function of its own: the caller is who used it too early.
        where = mistake.op.where
    if isinstance(mistake.op, Join):
        return _returned(mistake, mistake.op, ratio, where)
    if mistake.extreme:
        return Finding(
            "SW405",
            f"uses each device's own maximum or minimum over {over} as if it were the whole: "
            f"{mistake.reason}",
            where,
            remedy=_combined(over),
        )
    if around := around_own_mean(mistake):
        return _variance(around, over, where)
    found = _used(mistake, mistake.op, mistake.reason, where)
    if not mistake.reason.startswith("division by"):
        return found
    return dataclasses.replace(
        found,
        remedy="sum numerator and denominator separately, and divide once: "
        f"jax.lax.psum(total, {over}) / jax.lax.psum(count, {over}).",
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


def _combined(over: str) -> str:
    """How maxima are combined so that it can be differentiated too: JAX has no rule for pmax."""
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
            _nowhere(),
            remedy=f"prove it with a batch that divides ({filled} rows here); sw.check compares "
            "the numbers of this one.",
        )
    why = "no rule leads from one to the other"
    if isinstance(op, Leaf | Collective):
        why = f"no rule says what {op.name} gives here"
    return Finding(
        "SW409",
        f"could not be related to what it is on one device: {why}",
        op.where if op is not None else _nowhere(),
        remedy="sw.check compares numbers instead.",
    )


def _number(ratio: Fraction) -> str:
    if ratio.denominator == 1:
        return str(ratio.numerator)
    texts = (f"{float(ratio):.{digits}g}" for digits in (6, 9, 17))
    return next((text for text in texts if text != "1"), str(ratio))


def _nowhere() -> Where:
    return Where("", 0, "")


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

"""A value that is a multiple of what it is on one device, in words: since which line, and why."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from ..._meaning import Gap, Step
from ..._mesh import Axis
from ..._program import Collective, Leaf, Lit, Op, within
from .diagnose import line_of
from .powers import Powers, Seen, once, powers, said
from .two_ways import two_ways
from .verdict import NOWHERE, Finding


def names(axes: Sequence[Axis]) -> str:
    """Axes as one writes them in a collective: `'data'` or `('data', 'model')`."""
    own = [axis.name for axis in axes]
    return repr(own[0]) if len(own) == 1 else repr(tuple(own))


def times(gap: Gap, axes: tuple[Axis, ...], seen: Seen) -> Finding:
    """The finding for a value that is a multiple of what it is on one device."""
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
    scaled = _by_hand(gap) if not fitting else []
    if scaled:
        why = ": what it is multiplied or divided by here depends on the number of devices"
    steps = [step for step in gap.steps if step.axis is None or _is_in(step, own)] or gap.steps
    steps = scaled[-1:] or steps
    where = steps[0].op if steps else gap.stray
    return Finding(
        "SW401" if ratio > 1 else "SW402",
        f"{_made_of(gap)}is {_number(ratio)} times what it is on one device{why}",
        line_of(where) if where is not None else NOWHERE,
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


def _by_hand(gap: Gap) -> list[Step]:
    """Where something is multiplied by a number that the devices change, but for means."""
    return [step for step in _steps(gap, "scaled") if not within(step.op.source, "pmean")]


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
    if summed_again and summed_again[-1].op.backward:
        return Finding(
            "SW401",
            f"{head}the backward pass sums a gradient over {over} here although every device has "
            "the same; with check_vma=False the derivative of a psum is a psum",
            summed_again[-1].op.where,
            remedy="leave check_vma on, where that derivative is known to be the same everywhere; "
            "or hand it back as it is: a jax.custom_vjp around the psum, whose backward function "
            "returns (gradient,).",
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
    if paid and jnp.issubdtype(paid[-1].op.outs[0].dtype, jnp.integer):  # a count is no mean
        return Finding(
            "SW401",
            f"{head}it is summed over {over}, beside a number that is one device's own",
            paid[-1].op.where,
            remedy="take that number of all devices: x.size is that of one device's part, and "
            f"jax.lax.psum(x.size, {over}) that of the whole.",
        )
    if paid:
        return Finding(
            "SW401",
            f"{head}it is summed over {over}, where each device's value is already a mean over its "
            "own part",
            paid[-1].op.where,
            remedy=_averaged(paid[-1].op, over),
        )
    last = gap.steps[-1].op.where if gap.steps else NOWHERE
    return Finding(
        "SW401",
        f"{head}{said(dict.fromkeys((axis.name for axis in axes), 1))}",
        last,
        remedy=f"look at what is counted, summed and averaged over {over} on the way.",
    )


def _averaged(op: Op, over: str) -> str:
    """What to do instead of summing."""
    if isinstance(op, Collective) and op.name == "psum_scatter":
        return f"divide what it gives by jax.lax.axis_size({over})."
    return f"average instead of summing: jax.lax.pmean(..., {over})."


def _too_small(gap: Gap, ratio: Fraction, axes: tuple[Axis, ...]) -> Finding:
    over = names(axes)
    head = f"{_made_of(gap)}is 1/{_number(1 / ratio)} of what it is on one device: "
    scaled, paid = _steps(gap, "scaled"), _steps(gap, "paid", axes)
    averaged = [step for step in paid if within(step.op.source, "pmean")]
    by_hand = _by_hand(gap)
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
            gap.steps[0].op.where if gap.steps else NOWHERE,
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


def _number(ratio: Fraction) -> str:
    if ratio.denominator == 1:
        return str(ratio.numerator)
    texts = (f"{float(ratio):.{digits}g}" for digits in (6, 9, 17))
    return next((text for text in texts if text != "1"), str(ratio))

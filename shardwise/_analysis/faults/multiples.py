"""Faults that multiply a result by a factor, or weight its parts wrongly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .fault import Fault
from .finding import Finding
from .powers import size_words

AVERAGED = "average instead of summing: jax.lax.pmean(..., {over})."


class TooLarge(Fault):
    code = "SW401"
    title = "n times what it should be: summed where it should be averaged, or summed twice"
    old = ("SW101",)
    explanation = """
        **n times what it should be**, where n is the size of a mesh axis or a product of several: a
        sum of means, a sum of what every device has in full, or a gradient that autodiff has
        already summed. All meshes that were tried decide together which axis it is: a factor of 4
        on `{dp: 4, tp: 4}` may belong to either.
    """
    see = (("My gradients are n times too large", "how-to/gradients"),)
    wrong = """
        def twice(x, w1, w2, b2):
            hidden = lax.psum(jax.nn.relu(x @ w1) @ w2, "model")
            return lax.psum(hidden, "model")


        prove(twice)
    """
    remedy = """
        Average means with `pmean`, and sum only once. For a gradient, differentiate the loss of all
        devices, or let the parameters vary before you differentiate.
    """
    right = """
        def once(x, w1, w2, b2):
            return lax.psum(jax.nn.relu(x @ w1) @ w2, "model")


        prove(once)
    """

    @classmethod
    def from_meaning(cls, m: Any) -> Finding | None:
        """Report which sum is superfluous, from a `Multiple`."""
        if m.direction == 0 and m.ratio > 1:
            return cls.finding(*m.unclear())
        if m.direction <= 0:
            return None
        head, axes, paid = (
            f"{m.made_of}is {m.number} times what it is on one device: ",
            m.over,
            m.paid,
        )
        repeated = [step for step in m.steps("times") if not m.is_mean(step)]
        auto = next((step for step in paid if step.op.backward), None)
        loss, seeded = m.steps("reduced", everywhere=True), m.steps("seeded")
        if auto is not None and not repeated and loss:
            return cls.finding(
                f"{head}so is the loss that is differentiated, since this line",
                loss[0].op.where,
                f"average it: jax.lax.pmean(..., {axes}); or divide its sum by the number of all, "
                "not of one device's.",
            )
        if auto is not None and not repeated:
            idle = next((step for step in m.steps("times") if step.order > auto.order), None)
            tail = f"; the pmean at {idle.op.where} averages equal values" if idle else ""
            return cls.finding(
                f"{head}autodiff sums this gradient over {axes}, and each device's loss is a mean "
                f"over its own part{tail}",
                *m.gradient(auto),
            )
        if repeated and repeated[-1].op.backward:
            return cls.finding(
                f"{head}the backward pass sums a gradient over {axes} here although every device "
                "has the same; with check_vma=False the derivative of a psum is a psum",
                repeated[-1].op.where,
                "leave check_vma on, where that derivative is known to be the same everywhere; or "
                "hand it back as it is: a jax.custom_vjp around the psum, whose backward function "
                "returns (gradient,).",
            )
        if repeated:
            return cls.finding(
                f"{head}it is summed over {axes} although every device has the same value",
                repeated[-1].op.where,
                f"leave the sum out, or average: jax.lax.pmean(..., {axes}).",
            )
        if paid and seeded:
            line = seeded[-1].op.where
            over = m.over_axes([step for step in seeded if step.op.where == line])
            return cls.finding(
                f"{head}what is differentiated is summed over {over} here, with check_vma=False, "
                f"so that its derivative is summed over {over} too, before the sum at "
                f"{paid[-1].op.where}",
                line,
                "differentiate each device's own part and sum afterwards; or leave check_vma on, "
                "where autodiff sums the gradient once, and leave the other sum out.",
            )
        scaled = [
            s for s in m.steps("scaled", everywhere=True) if paid and s.order > paid[-1].order
        ]
        by_hand = [step for step in scaled if not m.is_mean(step)]
        averaged = all(map(m.is_mean, paid))
        if by_hand and (averaged or m.divides(by_hand[-1], 1 / m.ratio)):
            return cls.finding(
                f"{head}it is {'averaged' if averaged else 'summed'} over {axes} at "
                f"{paid[-1].op.where}, and multiplied by the number of devices here",
                by_hand[-1].op.where,
                "leave the number of devices out.",
            )
        if scaled and Fraction(paid[-1].coef).denominator == 1:
            return cls.finding(
                f"{head}a sum over {axes} is divided by what one device has",
                scaled[-1].op.where,
                f"divide by the number of all, or sum it too: jax.lax.psum(count, {axes}).",
            )
        if paid and m.counts(paid[-1]):  # a count is no mean
            return cls.finding(
                f"{head}it is summed over {axes}, beside a number that is one device's own",
                paid[-1].op.where,
                "take that number of all devices: x.size is that of one device's part, and "
                f"jax.lax.psum(x.size, {axes}) that of the whole.",
            )
        if paid and m.sums_all(paid):
            scatters = getattr(paid[-1].op, "name", "") == "psum_scatter"
            return cls.finding(
                f"{head}it is summed over {axes}, where each device's value is already a mean over "
                "its own part",
                paid[-1].op.where,
                f"divide what it gives by jax.lax.axis_size({axes})."
                if scatters
                else AVERAGED.format(over=axes),
            )
        return cls.finding(
            f"{head}{size_words(m.powers)}",
            m.step_line(-1),
            f"look at what is counted, summed and averaged over {axes} on the way.",
        )

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report by how much a result is too large, from a `Measured` factor."""
        if wrong.multiple is None or wrong.multiple < 1:
            return None
        text = f"is {wrong.multiple:.4g} times too large, {wrong.whose}"
        remedy = SUMMED if wrong.reduced_by == "pmean" else AVERAGED
        return cls.finding(text, wrong.where, remedy.format(over=wrong.over))


SUMMED = "sum instead of averaging: jax.lax.psum(..., {over}), or divide only once."


class TooSmall(Fault):
    code = "SW402"
    title = "1/n of what it should be: averaged where it should be summed, or divided twice"
    old = ("SW102",)
    explanation = """
        **1/n of what it should be.** An average of shares, or a division too many. The message is
        about the result, but the factor is that of the part that is wrong: in the example the
        product, not the bias.
    """
    wrong = """
        def averaged(x, w1, w2, b2):
            return lax.pmean(jax.nn.relu(x @ w1) @ w2, "model") + b2


        prove(averaged)
    """
    remedy = "Sum what is a total, average what is a mean."
    right = """
        def summed(x, w1, w2, b2):
            return lax.psum(jax.nn.relu(x @ w1) @ w2, "model") + b2


        prove(summed)
    """

    @classmethod
    def from_meaning(cls, m: Any) -> Finding | None:
        """Report which division is superfluous, from a `Multiple`."""
        if m.direction == 0:
            return cls.finding(*m.unclear())
        head, axes = f"{m.made_of}is 1/{m.inverse} of what it is on one device: ", m.over
        scaled, paid = m.steps("scaled", everywhere=True), m.steps("paid")
        averaged = [step for step in paid if m.is_mean(step)]
        by_hand = m.by_hand
        divided = [step for step in by_hand if m.divides(step, 1 / m.ratio)]
        late = [step for step in divided if averaged and step.order > averaged[-1].order]
        if late:
            return cls.finding(
                f"{head}it is averaged over {axes} at {averaged[-1].op.where}, and divided by the "
                "number of devices again",
                late[-1].op.where,
                "divide only once.",
            )
        if divided and not averaged:
            return cls.finding(
                f"{head}it is divided by the number of devices along {axes} here",
                divided[-1].op.where,
                "leave the division out.",
            )
        if by_hand and paid and not averaged and by_hand[-1].order > paid[-1].order:
            return cls.finding(
                f"{head}it is summed over {axes} at {paid[-1].op.where}, and what it is divided by "
                "here grows too fast with the number of devices",
                by_hand[-1].op.where,
                f"leave out one factor jax.lax.axis_size({axes}).",
            )
        reductions = averaged or paid or [step for step in scaled if step not in by_hand]
        if not reductions:
            return cls.finding(
                f"{head}{size_words(m.powers)}",
                m.step_line(0),
                f"look at what is averaged or divided over {axes} on the way.",
            )
        return cls.finding(
            f"{head}it is averaged over {axes}, where each device has a share of a sum",
            reductions[-1].op.where,
            f"sum instead of averaging: jax.lax.psum(..., {axes}).",
        )

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report by how much a result is too small, from a `Measured` factor."""
        if wrong.multiple is None or wrong.multiple >= 1:
            return None
        text = f"is {wrong.fraction(wrong.multiple)} of what it should be, {wrong.whose}"
        remedy = AVERAGED if wrong.reduced_by == "psum" else SUMMED
        return cls.finding(text, wrong.where, remedy.format(over=wrong.over))


class CountedOften(Fault):
    code = "SW404"
    title = "a whole value is added before the sum, and counted once for each device"
    explanation = """
        **A whole value is counted once for each device.** The bias is on every device; added before
        the sum, it comes in n times.
    """
    wrong = """
        def biased(x, w1, w2, b2):
            return lax.psum(jax.nn.relu(x @ w1) @ w2 + b2, "model")


        prove(biased)
    """
    more = """
        A bias of zeros hides this from numbers. `sw.check` then says `passed a weak test`, with
        this finding as a warning that names the argument that is zero.
    """

    @classmethod
    def from_meaning(cls, m: Any) -> Finding | None:
        """Report where the value is added, from a `Multiple`."""
        step = m.counted
        if step is None:
            return None
        axis_name = repr(step.axis.name)
        return cls.finding(
            f"counts a value {step.axis.size} times: every device has it whole and adds it here, "
            f"before the sum over {axis_name}",
            step.op.where,
            f"add it after the sum, or divide it by jax.lax.axis_size({axis_name}).",
        )

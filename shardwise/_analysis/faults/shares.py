"""Faults in which the value of one device is used as that of all."""

from __future__ import annotations

import math
from typing import Any

from .fault import Fault
from .finding import Finding


class ShareReturned(Fault):
    code = "SW403"
    title = "a share of a sum is returned"
    old = ("SW104",)
    explanation = """
        **A share is returned.** The `psum` is missing, or the `pmean` or `pmax`, and where
        `out_specs` say that the result is the same everywhere, JAX returns what the first device
        has. Unless its check is off, JAX refuses such a program.
    """
    wrong = """
        def unsummed(x, w1, w2, b2):
            return jax.nn.relu(x @ w1) @ w2


        prove(unsummed)
    """
    remedy = "The message says which reduction gives the right result."

    @classmethod
    def from_meaning(cls, m: Any) -> Finding | None:
        """Report the missing reduction, from a `Misuse` of shares that are returned."""
        if not m.returned:
            return None
        axes, ratio = m.over, m.ratio
        if not m.same and not m.mistake.extreme and m.joins_parts:
            return ShareUsed.used(m, m.mistake.maker, "parts of an array meet it")
        count = math.prod(axis.size for axis in m.mistake.axes)
        if m.same and ratio not in (None, 1, count):
            return Differs.from_meaning(m.over, m.line)  # no sum of them is the result
        if m.same and ratio is None and not m.mistake.extreme:
            return cls.finding(
                f"is made with only the first device's share of a sum over {axes}",
                m.where,
                f"add the shares up, before anything is added to them: jax.lax.psum(..., {axes}), "
                "or pmean if each is a mean of its own part.",
            )
        reduce, share = "psum", f"share of a sum over {axes}"
        remedy = "add the shares up before they are returned"
        if m.mistake.extreme:
            reduce, share = "pmax", f"own maximum or minimum, not that over {axes}"
            remedy = "combine them before they are returned, with pmax or pmin"
        elif ratio == count:
            reduce, share = "pmean", f"own mean, not the mean over {axes}"
            remedy = "average them before they are returned"
        is_only = "is only the first device's"
        if not m.same:
            is_only = "is put together from each device's"
            remedy += ", and leave the axis out of out_specs"
        return cls.finding(
            f"{is_only} {share}", m.where, f"{remedy}: jax.lax.{reduce}(..., {axes})."
        )


class ShareUsed(Fault):
    code = "SW405"
    title = "a share of a sum is used as if it were the whole"
    old = ("SW103",)
    explanation = """
        **A share is used as if it were the whole.** An activation, a norm, a root or a comparison
        of what has not been added up yet.
    """
    wrong = """
        def too_early(x, w1, w2, b2):
            partial = jax.nn.relu(x @ w1) @ w2
            return lax.psum(jnp.tanh(partial), "model")


        prove(too_early)
    """
    more = """
        Read alone, this could still be right by some identity, so the proof says "unknown" where it
        may not run the program (`run=False` here); with numbers it is refuted. It is reported only
        for what is known to be a share: the sum that is missing is a value that the program has on
        one device. Where numbers are wrong, it is called the cause only if what is made of the
        share is wrong up to the result.

        Of a quotient it depends on what is divided. A total over a count, both of them shares, is
        summed on both sides: `psum(total) / psum(count)`. Where what is divided is no share, as in
        `w / w.sum()`, only what it is divided by is summed: `w / psum(w.sum())`.

        A variance is where adding up or averaging does not help. `x.var()` of a part measures
        distances from the mean of that part, and the mean of such variances leaves out how far the
        means of the parts are apart. So the mean has to be that of all before anything is squared:

        ```python
        def own_variance(x, w1, w2, b2):
            hidden = x @ w1
            return lax.pmean(hidden.var(-1), "model")


        prove(own_variance)
        ```

        ```python
        def variance_of_all(x, w1, w2, b2):
            hidden = x @ w1
            mean = lax.pmean(hidden.mean(-1, keepdims=True), "model")
            return lax.pmean(((hidden - mean) ** 2).mean(-1), "model")


        prove(variance_of_all)
        ```
    """

    @classmethod
    def from_meaning(cls, m: Any) -> Finding:
        """Report where a share is used and what has to come first, from a `Misuse`."""
        axes = m.over
        if m.mistake.extreme:
            return cls.finding(
                f"uses each device's own maximum or minimum over {axes} as if it were the whole: "
                f"{m.mistake.reason}",
                m.where,
                _combined(axes, m.mistake.exponent),
            )
        if m.gradient is not None:
            line = m.gradient.where
            at = f", at {m.mistake.op.where}" if m.mistake.op.where.line != line.line else ""
            return cls.finding(
                f"is made with a gradient that is each device's share of a sum over {axes}: that "
                f"of what goes in here, which the backward pass uses as if it were the whole{at}",
                line,
                "sum it in the backward pass: hand the value over through a jax.custom_vjp whose "
                f"backward function is jax.lax.psum(gradient, {axes}); or leave check_vma on, "
                "where autodiff sums it.",
            )
        if (dims := m.variance) is not None:
            mean_dims, var_dims = dims
            return cls.finding(
                "is made with a variance around each device's own mean, not around the mean over "
                f"{axes}: the square comes before the means are averaged",
                m.where,
                "subtract the mean of all before squaring:\n"
                f"    mean = jax.lax.pmean(x.mean({mean_dims}), {axes})\n"
                f"    var = jax.lax.pmean(((x - mean) ** 2).mean({var_dims}), {axes})\n"
                "The mean of the devices' own variances leaves out how far their means are apart.",
            )
        remedy = ""
        if m.mistake.reason.startswith("division by"):
            remedy = (
                f"sum only what it is divided by: x / jax.lax.psum(..., {axes}), or pmean if it is "
                "a mean. What is divided is no share of a sum, and stays as it is."
                if m.divides_whole
                else "sum numerator and denominator separately, and divide once: "
                f"jax.lax.psum(total, {axes}) / jax.lax.psum(count, {axes})."
            )
        return cls.used(m, m.mistake.op, m.mistake.reason, remedy)

    @classmethod
    def used(cls, m: Any, by: Any, reason: str, remedy: str = "") -> Finding:
        """Report the operation that uses a share as the whole."""
        place = f" at {by.where}" if by.where.line != m.where.line else ""
        return cls.finding(
            f"uses each device's own share of a sum over {m.over} as if it were the whole{place}: "
            f"{reason}",
            m.where,
            remedy
            or f"add the shares up first: jax.lax.psum(..., {m.over}), or pmean if they are means.",
        )


def _combined(over: str, exponent: bool) -> str:
    """Return how maxima are combined; in a logsumexp, in a way that can be differentiated.

    JAX has no derivative of pmax.
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


class Differs(Fault):
    code = "SW406"
    title = "a result declared the same differs between devices"
    old = ("SW105",)
    explanation = """
        **A result declared the same differs between devices**, and neither a sum nor a mean of what
        they have is right. JAX returns the first device's where `check_vma` is off.
    """
    wrong = """
        def columns(x, w1, w2, b2):
            return jax.nn.relu(x @ w1)


        prove(columns)
    """
    remedy = "Reduce it the right way, or declare it split."
    right = """
        prove(columns, P(None, "model"))
    """

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report that the devices hold different values."""
        return cls.from_meaning(wrong.differs_over, wrong.where) if wrong.apart else None

    @classmethod
    def from_meaning(cls, over: str, where: Any) -> Finding:
        """Report the operation that makes the result that differs."""
        return cls.finding(
            f"differs between devices along {over}, though out_specs declare it the same; JAX "
            "returns the first device's",
            where,
            f"reduce it over {over} (jax.lax.psum, pmean), or declare it split in out_specs.",
        )


class OtherDimension(Fault):
    code = "SW407"
    title = "a result is split along a different dimension than declared"
    explanation = """
        **A result is split along a different dimension than `out_specs` declare.** The parts are
        put together the wrong way.
    """
    wrong = """
        prove(columns, P("model"))
    """
    remedy = "Name the axis in `out_specs` at the dimension that is split."

    @classmethod
    def from_meaning(cls, over: str, where: Any) -> Finding:
        """Report the operation that makes the result that is joined along another dimension."""
        return cls.finding(
            f"is split over {over} along another dimension than out_specs declare",
            where,
            "name the axis in out_specs at the dimension that is split.",
        )


class NotFollowed(Fault):
    code = "SW409"
    title = "no rule relates the result to one device's"
    explanation = """
        **No rule relates the result to one device's.** The line is the first at which the two
        programs diverge. A batch that is filled up because it does not divide is named instead of a
        line; prove it with one that divides. A result that is "too long to take apart" may be
        proved with fewer steps, or with `lax.scan` in place of a loop in Python. Sizes of an axis
        that were "not reached" may be proved by themselves. It is not an error of yours: `sw.check`
        compares numbers.
    """
    see = (("The rules", "prove/rules"),)

    @classmethod
    def not_reached(cls, sizes: str, first: dict[str, int] | None, why: str) -> Finding:
        """Report meshes on which the program was not read; `first` is one of several."""
        remedy = "write repeated layers as one lax.scan, or prove a part of the program."
        if first is not None:
            remedy = f"prove the sizes that you will run with by themselves: mesh={first}"
        return cls.finding(f"{sizes}: not reached: {why}", remedy=remedy, certain=False)

    @classmethod
    def from_meaning(cls, gap: Any, mesh: str, where: Any, name: str) -> Finding:
        """Report what could not be analysed: from the operation `name` on there is no rule."""
        if gap.filled is not None:
            rows, filled = gap.filled
            return cls.finding(
                f"could not be related to what it is on one device: {rows} rows do not divide over "
                f"{mesh}, so they are filled up to {filled}, and no rule leaves out again what "
                "is filled up",
                remedy=f"prove it with a batch that divides ({filled} rows here); sw.check "
                "compares the numbers of this one.",
            )
        if gap.mistake is not None and gap.mistake.reason:
            return cls.finding(f"could not be followed: {gap.mistake.reason}", where)
        reason = "no rule leads from one to the other"
        if name:
            reason = f"no rule says what {name} gives here"
        if gap.long:
            reason = "it is too long to take apart"
        return cls.finding(
            f"could not be related to what it is on one device: {reason}",
            where,
            "sw.check compares numbers instead.",
        )

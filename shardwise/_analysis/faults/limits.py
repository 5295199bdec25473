"""Limits of a check: data that cannot expose mistakes, or nothing to compare with."""

from __future__ import annotations

from typing import Any

from .fault import Fault
from .finding import MEANING, NUMBERS, Finding

DRAW = "or the shapes alone, and values are drawn: jax.ShapeDtypeStruct(x.shape, x.dtype)."
DRAWN = "in place of the shapes: numbers as the program is for, which were not found by drawing."


FEW = 3
"""The number of further lines that a finding names."""


class Limit(Fault):
    """A limit of the check, not a fault of the program; this base class has no section."""

    code = ""
    title = ""
    explanation = ""
    certain = False


class Contradiction(Limit):
    code = "SW410"
    title = "proved, yet the numbers differ"
    evidence = (MEANING, NUMBERS)
    explanation = """
        **Proved, yet the numbers differ.** By its meaning the program is right on a mesh, but a run
        on that mesh differs. Meaning knows numbers without end: look for a sum that overflows on
        the way on some meshes, for integers that wrap around, for a NaN that is lost again. If
        there is none, it is a bug in shardwise, and a report with the program would help. The
        verdict follows the numbers.
    """

    @classmethod
    def on(cls, mesh: str) -> Finding:
        """Report a mesh on which results are wrong although the analysis proved them."""
        return cls.finding(
            f"the program is proved on {mesh}, for numbers without end, and yet they differ there: "
            "something overflows on the way, wraps around or is NaN. If nothing does, this is a "
            "bug in shardwise, and a report with the program would help",
            mesh=mesh,
        )


class NothingCompared(Limit):
    code = "SW501"
    title = "nothing to compare"
    explanation = "**Nothing to compare**: the function returns no arrays, or gets no element."
    wrong = """
        @sharded()
        def nothing(x):
            return None


        print(check(nothing, x))
    """
    remedy = "Return what the program computes: the loss, the gradients, the new parameters."

    @classmethod
    def no_elements(cls) -> Finding:
        """Report arguments without a single element."""
        return cls.finding(
            "no argument has an element: nothing could be seen",
            remedy="give arguments that have elements, or shapes without a dimension of size 0.",
        )

    @classmethod
    def so(cls, what: str) -> Finding:
        """Report that nothing was compared."""
        remedy = "return what the program computes: the loss, the gradients, the new parameters."
        return cls.finding(what, remedy=remedy)


class OneDevice(Limit):
    code = "SW502"
    title = "one device only, or an axis that was only ever 1"
    explanation = """
        **One device only.** All the meshes have a single device and there is no `reference=`, so
        the result was compared with itself.
    """
    wrong = """
        @sharded()
        def mean(x):
            return pmean(jnp.mean(x), "data")


        print(check(mean, x, sizes=[1]))
    """
    remedy = """
        Name sizes above 1. The same is reported of an axis that the program uses and that has size
        1 on every mesh, where other axes have more: `mesh={"data": 1, "model": [1, 2]}` shows
        nothing of what goes wrong along `data`.
    """

    @classmethod
    def along(cls, axis: str, alone: bool) -> Finding:
        """Report an axis of size 1; with `alone`, every mesh is a single device."""
        if alone:
            return cls.finding(
                "only one device was tried: its result was compared with itself",
                remedy=f'mesh={{"{axis}": [1, 2, 4, 8]}}, or reference=.',
            )
        return cls.finding(
            f"axis {axis!r} was only ever 1: what goes wrong along it could not be seen",
            remedy=f'mesh={{"{axis}": [1, 2, 4, 8], ...}}.',
        )


class Degenerate(Limit):
    code = "SW503"
    title = "a result of nothing but zeros, infinities or NaN"
    explanation = """
        **A result of nothing but zeros, infinities or NaN.** Zeros and infinities are still right
        when they are multiplied by 8, and NaN equals NaN here. NaN is reported wherever it is,
        infinities where a result has nothing else (a mask may well have some), zeros only where all
        results are zero: an optimizer's first state may well be.
    """
    wrong = "print(check(mean, x * 0))"
    remedy = "Use other data, or pass shapes: values are drawn for them."

    @classmethod
    def of(cls, paths: list[str], what: str, elements: bool) -> Finding:
        """Report degenerate results; `what` says how, `elements` whether only some elements are."""
        more = f" (and {len(paths) - 1} more results)" if len(paths) > 1 else ""
        pronoun = "them" if elements else "it"
        message = f"{paths[0]} {what}: nothing could be seen of {pronoun}{more}"
        return cls.finding(message, remedy=f"give other data, {DRAW}")


class SameData(Limit):
    code = "SW504"
    title = "every device has the same data"
    explanation = """
        **Every device has the same data**: no argument that is split over devices differs between
        them. Ones, zeros and repeated rows hide mistakes that mix up devices, take one device for
        all of them, or weight them wrongly. One argument alone can hide as much, such as a mask of
        ones or lengths that are all equal: it is named, unless the program is proved to be right
        with any data, or the argument is a state that comes back. In the example the mean of the
        first device's part is returned instead of the mean of all.
    """
    wrong = """
        @sharded(check_vma=False)
        def first(x):
            return jnp.mean(x)


        print(check(first, jnp.ones(16)))
    """
    remedy = "Use data that differs from row to row, or pass shapes."

    @classmethod
    def at(cls, where: Any, paths: list[str]) -> Finding:
        """Report arguments that are the same on every device; without paths, all of them."""
        data_text, cannot = "data", "what mixes up devices, or takes one for all, cannot be seen"
        if paths:
            data_text = paths[0] + (f" (and {len(paths) - 1} more)" if len(paths) > 1 else "")
            differ = "they differ" if len(paths) > 1 else "it differs"
            cannot = f"a mistake that shows only where {differ} cannot be seen"
        return cls.finding(
            f"every device was given the same {data_text}: {cannot}",
            where,
            f"give data that differs from row to row, {DRAW}",
        )


class HiddenByZeros(Limit):
    code = "SW505"
    title = "zeros among the arguments hide a mistake"
    explanation = """
        **Zeros among the arguments hide a mistake**: the results are right with these values, and
        wrong with other numbers in place of an argument that is zero everywhere. Networks begin
        with such zeros: the gain of a last norm, the second matrix of an adapter, the rate of a
        dropout. Where a program is not proved, it is run once more with other numbers there, and
        the verdict reports what they show.
    """
    wrong = """
        def block(x, gain, *, mesh):
            def body(x, gain):
                return x + gain * (x - x.mean(0)) / x.std(0)  # of each device's own rows

            specs = P("data"), P()
            return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(x, gain)


        rows = jnp.arange(32.0).reshape(16, 2) ** 2
        print(sw.check(block, rows, jnp.zeros(2), mesh={"data": [1, 2, 4]}))
    """
    remedy = """
        Fix the line, which is as wrong as if the verdict failed, or use numbers that are not zero,
        or pass shapes.
    """

    @classmethod
    def by(cls, paths: list[str], shown: Finding) -> Finding:
        """Report what is wrong once the zeros in these arguments are replaced."""
        path, *more = paths
        subject = f"{path} is" if not more else f"{path} (and {len(more)} more) are"
        return cls.finding(
            f"{subject} zero everywhere, and with other numbers there the results are wrong: "
            f"{shown.message}",
            shown.where,
            f"fix this line ({shown.code}), or give {'them' if more else 'it'} numbers that are "
            f"not zero and check again, {DRAW}",
        )


class Ties(Limit):
    code = "SW506"
    title = "the data has ties"
    explanation = """
        **The data has ties**: a result differs between meshes, and differs as much when the
        arguments change by 1e-13 of themselves. A decision at an exact tie (equal scores under an
        `argmax`, a threshold that is met exactly) is made by the last bit of a sum, whose order
        depends on the mesh. That makes no program wrong, and nothing else is seen of these
        elements.
    """
    wrong = """
        def below(x, *, mesh):
            def body(x):
                total = jax.lax.psum((x / 3).sum(0), "data")
                return 3 * total < jax.lax.psum(x.sum(0), "data")  # the two are equal

            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


        waves = jnp.sin(jnp.arange(1024.0)).reshape(64, 16)
        found = sw.check(below, waves, mesh={"data": [1, 2, 4]}).findings
        print("SW506" in {finding.code for finding in found})
    """
    remedy = "Use data without ties, or break them by a rule of the program."

    @classmethod
    def of(cls, wrong: Any) -> Finding:
        """Report a result in which a tie is decided differently on a mesh."""
        count = int((wrong.got != wrong.want.value).sum())
        differ = "elements differ" if wrong.got.size > 1 else "element differs"
        return cls.finding(
            f"{wrong.path} is decided by a tie: {count} of {wrong.got.size} {differ} on "
            f"{wrong.mesh}, and as much by changing the arguments by 1e-13 of themselves",
            wrong.where,
            "give data without ties; or break them by a rule, as by the index of equal scores.",
        )


class Unmet(Limit):
    code = "SW507"
    title = "a condition had one outcome only"
    explanation = """
        **A condition had one outcome only.** Values were drawn for shapes, and a condition of the
        program was never true for them, or never false, although zeros, equal numbers, small
        integers, the constants of the program and NaN were tried. What the program computes in the
        other case was not compared. It is not reported for results that are proved.
    """
    wrong = """
        def skipped(x, *, mesh):
            def body(x):
                mean = x.mean()
                return jax.lax.pmean(jnp.where(mean**2 == 150.0625, 0.0, mean), "data")

            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


        print(sw.check(skipped, jax.ShapeDtypeStruct((16,), "float32"), mesh={"data": [1, 2]}))
    """
    remedy = "Pass arguments for which the condition has the other outcome."

    @classmethod
    def of(cls, rows: list[tuple[Any, str]]) -> Finding:
        """Report the conditions, each with its place and what it never was."""
        (where, text), *others = rows
        lines = ", ".join(dict.fromkeys(str(other.line) for other, _ in others[:FEW]))
        more = f"; and {len(others)} more, in line {lines}" if others else ""
        return cls.finding(
            f"{text} for the values drawn: what the program does otherwise was not compared{more}",
            where,
            "in place of the shapes, pass arguments for which the condition has the other outcome.",
        )

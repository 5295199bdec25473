"""Faults visible in the list of operations without a run, and deadlocks, which a run shows.

Findings from the operations alone may be false alarms and do not fail a verdict.
"""

from __future__ import annotations

from typing import Any

from .fault import Fault
from .finding import MEANING, OPERATIONS, Finding


class ReducedAgain(Fault):
    code = "SW201"
    title = "a reduction of what is already reduced"
    certain = False
    shown_by = ("SW401",)
    explanation = """
        **A reduction of what is already reduced.** The value is the same along the axis, so a
        `pmean` does nothing and a `psum` multiplies by the size. Most often it is a gradient that
        autodiff has summed: SW401 then reports that in its place. On its own it changes nothing, or
        is intended.
    """
    wrong = """
        @sharded()
        def twice(x):
            return pmean(psum(jnp.sum(x), "data"), "data")


        print(check(twice, x))
    """
    remedy = "Reduce once."

    @classmethod
    def from_operations(
        cls, op: Any, over: str, averages: bool, remedy: str, harmless: bool
    ) -> Finding:
        """Report a superfluous reduction; `remedy` is for a reduced gradient, else empty.

        It is `harmless` if every result is right: then something compensates for an extra sum.
        """
        reason = ""
        if remedy:
            reason = (
                ". A gradient of replicated parameters is: autodiff has already summed it over "
                "the devices, so a further sum or mean cannot correct it"
            )
        elif averages:
            remedy = "leave it out: it averages equal values."
        else:
            remedy = f"leave the sum out, or average: jax.lax.pmean(..., {over})."
        if harmless and not averages:
            reason += ". Every result is right, so something makes up for it"
            remedy = (
                "nothing, if that is meant, as where it is divided by the number of devices. "
                "Without it, nothing is sent along the axis."
            )
        name = "pmean" if averages else op.name
        message = f"{name} over {over} of a value that is already the same along it{reason}"
        return cls.finding(message, op.where, remedy)


class MayDiverge(Fault):
    code = "SW202"
    title = "a collective that some devices may never reach"
    certain = False
    shown_by = ("SW301",)
    old = ("SW408",)
    evidence = (OPERATIONS, MEANING)
    explanation = """
        **A collective under a decision that may differ** between the devices. Where it does, some
        of them wait forever. If a run shows that they diverge, it is SW301.
    """
    wrong = """
        @sharded()
        def capped(x):
            mine = jnp.sum(x)
            vary = functools.partial(jax.lax.pcast, axis_name="data", to="varying")
            capped = jax.lax.cond(mine > 1e6, lambda v: vary(pmean(v, "data")), lambda v: v, mine)
            return psum(capped, "data")


        print(check(capped, x))
    """
    remedy = "Compute the collective on every device and select afterwards."
    right = """
        @sharded()
        def capped(x):
            mine = jnp.sum(x)
            return psum(jnp.where(mine > 1e6, pmean(mine, "data"), mine), "data")


        print(check(capped, x))
    """

    @classmethod
    def from_operations(cls, op: Any, collective: Any, mesh: str = "") -> Finding:
        """Report a branch or loop whose devices may diverge before a collective."""
        return cls.finding(
            f"{collective} is under a decision that may differ between the devices; where it does, "
            "some wait forever",
            op.where,
            "compute the collective on every device and select with jnp.where, or take the "
            "decision from a reduced value.",
            mesh=mesh,
        )


class MayDiffer(Fault):
    code = "SW203"
    title = "an output declared replicated that may differ"
    certain = False
    shown_by = ("SW301", "SW403", "SW406")
    explanation = """
        **An output declared replicated is computed from values that differ.** With
        `check_vma=False` JAX does not look. If the devices really differ, a run reports SW403 or
        SW406; if they come out the same, this finding remains. The program is right where that is
        by design: after a ring of `ppermute`, every device has added up the same numbers, and a
        `psum` on top would be n times too large.
    """
    wrong = """
        @sharded(check_vma=False)
        def largest(x):
            return jnp.max(jax.lax.all_gather(x, "data")) + 0 * x[0]


        print(check(largest, x))
    """
    remedy = "Where a reduction does the same, use it and leave the check on."
    right = """
        @sharded()
        def largest(x):
            return jax.lax.pmax(jnp.max(x), "data")


        print(check(largest, x))
    """

    @classmethod
    def from_operations(cls, axis: Any, where: Any) -> Finding:
        """Report a result that is declared the same along an axis but may differ."""
        return cls.finding(
            f"a result is declared the same along {axis.name!r} and computed from values that "
            "differ along it, with JAX's own check off",
            where,
            "nothing, if the devices end up alike by another way than a reduction, as round a ring "
            "of ppermute. If they are alike by chance, other data shows it.",
        )

    @classmethod
    def after_run(cls, finding: Finding, apart: bool, shown: bool) -> Finding:
        """Add what a run showed: whether the devices' values differ, and whether results do."""
        came = f"{finding.message}. It came out"
        if not apart:
            message = f"{came} the same on all devices here"
            return cls.finding(message, finding.where, finding.remedy)
        tail = "" if shown else ", which no result shows"
        first = "look first at the other findings, which may be the reason. Else " if shown else ""
        return cls.finding(
            f"{came} different on the devices here; the first device's is used{tail}",
            finding.where,
            f"{first}reduce it, or declare it split in out_specs. With check_vma on, JAX itself "
            "shows such a place.",
            certain=shown,
        )


NOT_SHARDED = (
    "there is no shard_map in the program: the compiler partitions it, and what it computes is the "
    "same on any mesh"
)


class UnusedAxis(Fault):
    code = "SW204"
    title = "a mesh axis that nothing uses"
    certain = False
    explanation = """
        **A mesh axis that nothing uses**: its devices all do the same work. Where the program has
        no `shard_map` at all, the compiler partitions it and what it computes is the same on any
        mesh: the headline of `check` and `prove` is then "nothing to check", and `explain` shows
        what the compiler sends. `inspect` reports it too, and `simulate` warns where the mesh makes
        no difference to the program.
    """
    see = (("Which line makes the compiler gather my weights", "how-to/weights"),)
    wrong = """
        def total(x, *, mesh):
            def per_device(x):
                return psum(jnp.sum(x), "data")

            return jax.shard_map(per_device, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


        print(sw.check(total, x, mesh={"data": [1, 2], "model": 2}))
    """
    remedy = "Name the axis in a spec or a collective, or leave it out of the mesh."
    right = """
        def total(x, *, mesh):
            def per_device(x):
                return psum(jnp.sum(x), ("data", "model"))

            rows = P(("data", "model"))
            return jax.shard_map(per_device, mesh=mesh, in_specs=rows, out_specs=P())(x)


        print(sw.check(total, x, mesh={"data": [1, 2], "model": 2}))
    """

    @classmethod
    def from_operations(cls, axis: Any, where: Any) -> Finding:
        """Report an axis that no spec and no collective names."""
        return cls.finding(
            f"nothing in the program uses mesh axis {axis.name!r}: its devices all do the same "
            "work",
            where,
            "name the axis in a spec or a collective, or leave it out of the mesh.",
        )

    @classmethod
    def not_sharded(cls) -> Finding:
        """Report a program without `shard_map`."""
        return cls.finding(
            NOT_SHARDED,
            remedy="sw.explain(f, *args, mesh=mesh) shows what the compiler sends, and from which "
            "line; on the command line, shardwise explain. To check what each device does, write "
            "it as a function and map it: jax.shard_map(body, mesh=mesh, in_specs=..., "
            "out_specs=...).",
        )


class GatheredToReduce(Fault):
    code = "SW205"
    title = "an `all_gather` that is only reduced again"
    certain = False
    explanation = """
        **An `all_gather` of something large whose result is only reduced again.** The answer is
        right, but every device receives the whole array to keep one number.
    """
    wrong = """
        @sharded(check_vma=False)
        def column_sums(x):
            return jnp.sum(jax.lax.all_gather(x, "data", tiled=True), axis=0)


        large = jnp.arange(1024.0 * 512).reshape(1024, 512)
        print(check(column_sums, large))
    """
    remedy = "Reduce first, then send the small result."
    right = """
        @sharded()
        def column_sums(x):
            return psum(jnp.sum(x, axis=0), "data")


        print(check(column_sums, large))
    """

    @classmethod
    def from_operations(cls, op: Any) -> Finding:
        """Report a large `all_gather`."""
        return cls.finding(
            f"all_gather brings {op.outs[0].bytes / 1e6:.1f} MB to every device, and the result is "
            "only reduced again",
            op.where,
            "reduce first: jax.lax.psum (or pmax) sends the size of the result.",
        )


class Rejected(Fault):
    code = "SW206"
    title = "a program that JAX rejects on several devices"
    explanation = """
        **JAX rejects the program on several devices, and a fix is known.** Either a result whose
        spec says that it is the same on every device may differ between them, or `out_specs` give
        a result another shape than on one device, and an operation behind it fails. Without a fix,
        the check raises the error.
    """
    wrong = """
        @sharded()
        def total(x):
            return jnp.sum(x)


        print(check(total, x))
    """
    remedy = "Reduce what is split before it is returned, or say in `out_specs` that it is split."
    right = """
        @sharded()
        def total(x):
            return psum(jnp.sum(x), "data")


        print(check(total, x))
    """

    @classmethod
    def from_operations(cls, error: str, where: Any, mesh: str) -> Finding:
        """Report the error."""
        first, *_ = error.splitlines()
        return cls.finding(f"JAX rejects it: {first}", where, mesh=mesh)


class Deadlock(Fault):
    code = "SW301"
    title = "a deadlock"
    explanation = """
        **A deadlock**: some devices wait in a collective that others never reach.
    """
    see = (("It hangs", "how-to/deadlock"),)
    wrong = """
        @sharded()
        def capped(x):
            vary = functools.partial(jax.lax.pcast, axis_name="data", to="varying")
            mine = jnp.sum(x)
            capped = jax.lax.cond(mine > 30, lambda v: vary(pmean(v, "data")), lambda v: v, mine)
            return psum(capped, "data")


        print(check(capped, x))
    """
    remedy = """
        That of SW202, or a decision that is the same everywhere: `psum(mine > 30, "data") > 0`. The
        condition of a `while_loop` around a collective is `pmax(predicate, "data")`: all go on for
        as long as one of them has to.
    """

    @classmethod
    def from_numbers(cls, error: Any, where: Any, mesh: str) -> Finding:
        """Report the deadlock with which a simulated program stopped."""
        head, *remedies = str(error).split("\n  Remedy: ")
        return cls.finding(head, where, remedies[0] if remedies else "", mesh=mesh)

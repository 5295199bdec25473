"""Other faults that numbers show: random draws, ranges, types and unexplained differences."""

from __future__ import annotations

from typing import Any

from .fault import Fault
from .finding import NUMBERS, Finding


class FollowsSharding(Fault):
    code = "SW106"
    title = "random numbers that follow the sharding"
    explanation = """
        **Random numbers follow the sharding.** With one key for all, every device draws the same
        numbers for its part; with a key per device, they change with the number of devices. Either
        way, a run cannot be repeated on a different mesh.
    """
    wrong = """
        @sharded(in_specs=(P(), P("data")), out_specs=P("data"))
        def noisy(key, x):
            return x + jax.random.normal(key, x.shape)


        print(check(noisy, jax.random.key(0), x))
    """
    remedy = "Make the key of each example from its index in the whole array."
    right = """
        @sharded(in_specs=(P(), P("data")), out_specs=P("data"))
        def noisy(key, x):
            first = jax.lax.axis_index("data") * len(x)
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(len(x)))
            return x + jax.vmap(jax.random.normal)(keys)


        print(check(noisy, jax.random.key(0), x))
    """
    more = """
        A key per device, `jax.random.fold_in(key, jax.lax.axis_index("data"))`, is common practice
        for dropout: the numbers are as random as they should be, and differ on another mesh.
        `check` reports that, and names the comment that accepts it at the line of the draw,
        `# shardwise: ignore[SW106]`. Nothing that comes of these numbers is then compared. To
        compare it nevertheless, check what does not depend on single draws: the program without
        dropout, or a mean of many draws with `reference=` the expected value and `rtol=`.
    """

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report the draw, and whether each device has its own key."""
        if wrong.draw is None:
            return None
        line, keys_differ = wrong.draw
        follows = "depends on random numbers that follow the sharding"
        remedy = "draw them for the whole array and keep the part of this device"
        if not keys_differ:
            return cls.finding(
                f"{follows}: every device draws the same ones, with one key ({wrong.much})",
                line,
                f"{remedy}, or make one key per example from its global index: "
                "jax.random.fold_in(key, index).",
            )
        return cls.finding(
            f"{follows}: each device draws with a key of its own, so another number of devices "
            f"draws other numbers ({wrong.much})",
            line,
            "accept it with that comment, or compare what does not depend on the numbers, with "
            f"reference= and rtol=. For the same numbers on any mesh, {remedy}.",
        )

    @classmethod
    def note(cls, wrong: Any) -> str:
        """Return the comment that accepts a separate key for each device."""
        if not wrong.draw[1]:
            return ""
        comment = f"`# shardwise: ignore[{cls.code}]`"
        return f". If that is meant, accept it: {comment} at the end of this line"


class NotFinite(Fault):
    code = "SW107"
    title = "NaN or infinity on some meshes only"
    explanation = """
        **NaN or infinity on some meshes only**: a division by the count of a device that has
        nothing, a logarithm of an empty sum, a sum in float16 of which one device's part is larger
        than 65504. A value that leaves the range of its dtype is named with its line, outside of
        loops. Where integers may wrap around, SW109 asks whether they do.
    """
    wrong = """
        @sharded()
        def total(x):
            return psum(jnp.sum(x.astype(jnp.float16)), "data")


        print(check(total, 4000 * (x - 8)))
    """
    remedy = "Add up in a dtype with a larger range."
    right = """
        @sharded()
        def total(x):
            return psum(jnp.sum(x), "data")


        print(check(total, 4000 * (x - 8)))
    """

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report what is not finite, and where a value exceeds its range."""
        if wrong.apart or not (wrong.not_finite or wrong.finite_alone):
            return None
        text = "is NaN or infinite"
        if not wrong.not_finite:
            text = "is finite where it should be NaN or infinite"
        overflow, line = wrong.overflow, wrong.where
        if overflow is not None:
            side = "" if wrong.not_finite else "on one device "
            text, line = f"{text} ({side}{overflow} here)", overflow.where
        empty = "an empty or masked shard: 0/0, log(0)."
        remedy = f"look for {empty}"
        if wrong.narrow is not None:
            kind, end = wrong.narrow
            remedy = f"look for a sum that leaves the range of {kind} ({end:g}) and add it up in "
            remedy += f"float32, or for {empty}"
        return cls.finding(text, line, remedy)


class OtherType(Fault):
    code = "SW108"
    title = "a different shape, dtype or structure"
    explanation = """
        **A different shape, dtype or structure** than on one device: the sizes of what is returned
        come from the local shapes.
    """
    wrong = """
        @sharded(out_specs=P("data"))
        def row_sum(x):
            return jnp.sum(x, keepdims=True)


        print(check(row_sum, x))
    """
    remedy = "One value for all devices is a reduction and is declared `P()`."
    right = """
        @sharded()
        def row_sum(x):
            return psum(jnp.sum(x, keepdims=True), "data")


        print(check(row_sum, x))
    """

    @classmethod
    def structure(cls, differ: str, where: Any, mesh: str) -> Finding:
        """Report results in another pytree; `differ` says how."""
        return cls.finding(
            f"the result has another structure than on one device: {differ} on {mesh}",
            where,
            "return the same pytree on every mesh.",
            leaf="result",
            mesh=mesh,
            evidence=NUMBERS,
        )

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report how dtype or shape differ."""
        if wrong.same_type:
            return None
        return cls.finding(
            f"is {wrong.kind} and should be {wrong.wanted_kind}",
            wrong.where,
            "look at out_specs: a dimension that is split comes back whole."
            if wrong.got.shape != wrong.want.value.shape
            else "return the same type: x.astype(...).",
        )


class DependsOnDevices(Fault):
    code = "SW109"
    title = "depends on the number of devices in some other way"
    explanation = """
        **A result depends on the number of devices** in none of the ways above. The line is that of
        the first value that is the same on every device yet depends on how many there are. Where
        every value before the result is split, it is the first one that, assembled from all
        devices, differs from the value on one device; a loop over the devices is compared after its
        last iteration, when every device has had every part.
    """
    wrong = """
        @sharded(out_specs=P("data"))
        def running_sum(x):
            return jnp.cumsum(x)


        print(check(running_sum, x))
    """
    remedy = "Look at how the parts depend on each other: here each one starts again at zero."
    right = """
        @sharded(out_specs=P("data"))
        def running_sum(x):
            total = jax.lax.all_gather(x.sum(), "data")
            before = jnp.arange(len(total)) < jax.lax.axis_index("data")
            return jnp.cumsum(x) + jnp.sum(total, where=before)


        print(check(running_sum, x))
    """

    @classmethod
    def from_operation(cls, wrong: Any, op: Any, does: str, over: str, rows: str) -> Finding:
        """Report an operation that each device applies only to its own part."""
        return cls.finding(
            f"depends on the number of devices ({wrong.much}): "
            f"each device {does} over {over} alone",
            op.where,
            "if the parts of all are meant, gather them first: "
            f"jax.lax.all_gather(x, {over}, tiled=True){rows}",
        )

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding | None:
        """Report the line at which a result starts to depend on the number of devices."""
        if wrong.written:
            return cls.finding(
                "is a number that the program takes from the mesh or from a shape: "
                f"{wrong.got} instead of {wrong.want.value}",
                wrong.where,
                "is it to be the number of devices or the size of a part? Then it is right to "
                "differ, and is not to be among the results. If not, take it from the shapes "
                "outside the shard_map.",
            )
        depends = f"depends on the number of devices ({wrong.much})"
        if wrong.origin and not wrong.same_at_origin:
            return cls.finding(
                f"{depends}: it differs first at this line",
                wrong.where,
                "this is the first value that, assembled from all devices (in a loop, after its "
                "last iteration), differs from the value on one device. Is the operation valid on "
                "a part of the array, and does a loop over the parts run once for each?",
            )
        return cls.finding(
            depends,
            wrong.where,
            f"this line is the first value that is the same on every device{wrong.along} and yet "
            "depends on how many there are: is the right collective there, over the right axis?"
            f"{wrong.may_wrap}",
        )


class NotReference(Fault):
    code = "SW110"
    title = "differs from the reference on one device already"
    explanation = """
        **A result differs from `reference=` on one device already.** Then it is not the sharding:
        the program and the reference compute different things. What the sharding does besides is
        reported separately.
    """
    wrong = """
        @sharded()
        def spread(x):
            return jnp.sqrt(psum((x**2).sum(), "data"))


        print(check(spread, x, reference=jnp.std))
    """
    remedy = """
        Compare the two without a mesh first: here neither the mean nor the number of elements is
        taken into account. Without `reference=` the program is compared with itself on one device.
    """

    @classmethod
    def from_numbers(cls, wrong: Any) -> Finding:
        """Report how the result on one device differs."""
        if wrong.same_type:
            text = f"differs from the reference on one device already ({wrong.much})"
        else:
            expected = wrong.wanted_kind
            text = f"is {wrong.kind} on one device already, and the reference gives {expected}"
        return cls.finding(
            f"{text}: that is not the sharding",
            remedy="compare the two without a mesh first: one of them computes something else. "
            "Without reference=, the program is compared with itself on one device.",
        )

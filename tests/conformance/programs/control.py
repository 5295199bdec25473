"""Loops and branches, with collectives inside and without."""

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import integers, normal, vary
from ..table import program
from . import X3, X4, XY, XY_ODD


def args(sizes):
    return normal(12, 2), normal(2)


@program(X4, args=args)
def scans_without_collectives(spmd, x, w):
    def body(x, w):
        def step(carry, row):
            carry = jnp.tanh(carry + row * w)
            return carry, carry.sum()

        start = vary(jnp.zeros(2), ["x"])
        last, sums = lax.scan(step, start, x)
        back, _ = lax.scan(lambda c, r: (step(c, r)[0], None), start, x, reverse=True)
        _, kept = lax.scan(lambda c, r: (c, r * w), None, x)
        return last[None], sums, back[None], kept

    return spmd(body, (P("x"), P()), P("x"))(x, w)


@program(X4, XY, XY_ODD, args=args)
def scans_with_collectives(spmd, x, w):
    def body(x, w):
        def forward(carry, row):
            carry = jnp.tanh(carry + lax.pmean(row * w, "x"))
            return carry, lax.ppermute(row * carry, "x", [(0, 1), (1, 0)])

        def backward(carry, row):
            return carry * 0.5 + row, lax.psum(carry, "x")

        last, shifted = lax.scan(forward, jnp.zeros(2), x)
        back, sums = lax.scan(backward, vary(jnp.zeros(2), ["x"]), x, reverse=True)
        return last, shifted, back[None], sums

    return spmd(body, (P("x"), P()), (P(), P("x"), P("x"), P()))(x, w)


@program(X4, XY, args=args)
def scans_over_nothing(spmd, x, w):
    def body(x, w):
        def step(carry, _):
            return carry + lax.pmean(jnp.sin(carry), "x"), None

        out, nothing = lax.scan(step, x * w, None, length=3)
        assert nothing is None
        never, empty = lax.scan(lambda c, r: (lax.psum(r, "x") + c, r), w, x[:0])
        return out, never, empty, lax.scan(step, x, None, length=4, unroll=2)[0]

    return spmd(body, (P("x"), P()), (P("x"), P(), P("x"), P("x")))(x, w)


@program(X4, XY, args=args)
def nested_scans(spmd, x, w):
    def body(x, w):
        def inner(carry, row):
            carry = carry + lax.pmean(row, "x") * w
            return carry, row * carry

        def outer(carry, scale):
            carry, rows = lax.scan(inner, jnp.sin(carry), x * scale, reverse=True)
            local, _ = lax.scan(lambda c, r: (c + r, None), vary(jnp.zeros(2), ["x"]), rows)
            return carry, (lax.psum(local, "x"), rows)

        return lax.scan(outer, w, jnp.arange(1.0, 3.0))

    return spmd(body, (P("x"), P()), (P(), (P(), P(None, "x"))))(x, w)


@program(X4, XY, args=args, checks=(False,))
def carries_that_start_replicated(spmd, x, w):
    def body(x, w):
        def step(carry, _):
            a, b, c = carry
            return (b + c, a * 0.5, jnp.tanh(x[0] + c)), lax.pmean(a, "x")

        (a, b, c), seen = lax.scan(step, (w, w * 2, w), None, length=4)
        looped = lax.fori_loop(0, 3, lambda i, v: v + lax.ppermute(v * x[0], "x", [(0, 1)]), w)

        def grow(state):
            n, v = state
            return n + 1, v + lax.axis_index("x").astype(v.dtype) + lax.pmax(v, "x")

        grown = lax.while_loop(lambda s: s[0] < 3, grow, (0, w))[1]
        return [r[None] for r in (a, b, c, looped, grown)], seen

    return spmd(body, (P("x"), P()), (P("x"), P()))(x, w)


@program(X3, XY, args=args)
def fori_loops(spmd, x, w):
    def body(x, w):
        def step(i, carry):
            local, shared = carry
            shared = shared + lax.psum(local.sum(0), "x") * (i + 1).astype("float32")
            return jnp.tanh(local + shared), shared

        known = lax.fori_loop(0, 3, step, (x, w))
        agreed = lax.fori_loop(1, lax.axis_size("x"), step, (x, w))
        rounds = lax.psum(1 + 0 * lax.axis_index("x"), "x")
        reduced = lax.fori_loop(0, rounds, step, (x, w))
        own = lax.fori_loop(0, lax.axis_index("x"), lambda i, c: jnp.sin(c) + 1, x)
        return known, agreed, reduced, own

    pair = (P("x"), P())
    return spmd(body, (P("x"), P()), (pair, pair, pair, P("x")))(x, w)


@program(X4, XY, args=args)
def while_loops(spmd, x, w):
    def body(x, w):
        def far(state):
            return lax.pmax(jnp.abs(state[1]).max(), "x") > 0.3

        def halve(state):
            n, v = state
            return n + 1, v * 0.5 + 0.01 * lax.pmean(v, "x")

        # The predicate is a collective; the body has one more.
        agreed = lax.while_loop(far, halve, (0, x * w))
        # Each device stops on its own; no collective is inside.
        own = lax.while_loop(lambda s: jnp.abs(s).max() > 0.3, lambda s: s * 0.5, x)
        never = lax.while_loop(lambda s: s[0] < 0, halve, (0, x))
        return agreed, own, never

    return spmd(body, (P("x"), P()), ((P(), P("x")), P("x"), (P(), P("x"))))(x, w)


@program(X4, XY, args=lambda s: (*args(s), integers(), integers(3, low=0, high=2)))
def branches(spmd, x, w, flag, flags):
    def body(x, w, flag, flags):
        def shared(x):
            return vary(lax.pmean(x, "x"), ["x"]) * w

        def alone(x):
            return jnp.sin(x)

        agreed = [lax.cond(flag > k, shared, alone, x) for k in (-20, 20)]
        reduced = lax.cond(lax.psum(x.sum(), "x") > 0, shared, alone, x)
        own = lax.cond(lax.axis_index("x") == 1, lambda x: x * 2, alone, x)
        chosen = lax.switch(flags[1] + 1, [alone, shared, lambda x: shared(x) + alone(x)], x)
        clamped = [lax.switch(k, [alone, shared], x) for k in (jnp.int32(-3), jnp.int32(9))]

        def step(carry, flag):
            return lax.cond(flag == 1, shared, alone, carry), lax.psum(carry, "x")

        return [*agreed, reduced, own, chosen, *clamped], lax.scan(step, x, flags)

    specs = (P("x"), (P("x"), P()))
    return spmd(body, (P("x"), P(), P(), P()), specs)(x, w, flag, flags)


@program(X4, XY, args=args)
def branches_on_what_is_replicated_in_truth(spmd, x, w):
    """No type says so, but the predicate agrees: it was gathered, or summed in groups of all."""

    def body(x, w):
        mean = lax.all_gather(x.mean(), "x").mean()

        def shared(x):
            return x + lax.ppermute(x, "x", [(0, 1), (1, 2)])

        twice = lax.cond(mean > 0, shared, lambda x: x - 1, x)
        same = vary(w.sum(), ["x"]) > 0
        return twice, lax.cond(same, shared, lambda x: x * 2, x)

    return spmd(body, (P("x"), P()), P("x"))(x, w)


def over_y(spmd, x, call):
    return spmd(call, P(("x", "y")), P(("x", "y")))(x)


@program(XY, XY_ODD, args=lambda s: (normal(24, 2),))
def branches_that_differ_over_another_axis(spmd, x):
    def body(x):
        def shared(x):
            stacked = jnp.stack([x] * spmd.sizes["x"])
            scattered = lax.psum_scatter(jnp.sin(stacked), "x")
            return lax.all_gather(x, "x").sum(0) + scattered + lax.all_to_all(stacked, "x", 0, 0)[0]

        def reduced(x):
            return vary(lax.psum(x, "x"), ["x"]) * 2

        even = lax.axis_index("y") % 2 == 0
        once = lax.cond(even, reduced, lambda x: jnp.sin(x), x)
        both = lax.cond(even, reduced, shared, x)
        third = lax.switch(lax.axis_index("y"), [jnp.sin, shared, reduced], x)
        return once, both, third

    return over_y(spmd, x, body)


@program(XY, XY_ODD, args=lambda s: (normal(24, 2),))
def loops_that_differ_over_another_axis(spmd, x):
    def body(x):
        def step(_, x):
            return jnp.sin(x) + lax.pmean(x, "x")

        rounds = lax.axis_index("y") + 1
        looped = lax.fori_loop(0, rounds, step, x)

        def far(state):
            return lax.pmax(jnp.abs(state[1]).max(), "x") > 0.3

        def halve(state):
            return state[0] + 1, state[1] * 0.4 + 0.05 * lax.psum(state[1], "x")

        n, halved = lax.while_loop(far, halve, (vary(0, ["y"]), x))
        return looped, halved, jnp.where(vary(n, ["x"]) > 2, looped, halved)

    return over_y(spmd, x, body)


@program(XY, args=lambda s: (normal(16, 2),))
def branches_in_loops_that_differ_over_another_axis(spmd, x):
    def body(x):
        def step(carry, k):
            def shared(c):
                return c * 0.5 + vary(lax.psum(c, "x"), ["x"])

            return lax.cond((k + lax.axis_index("y")) % 2 == 0, shared, jnp.sin, carry), carry

        return lax.scan(step, x, jnp.arange(3))

    return spmd(body, P(("x", "y")), (P(("x", "y")), P(None, ("x", "y"))))(x)


@program(XY, args=args)
def collectives_in_what_a_loop_closes_over(spmd, x, w):
    def body(x, w):
        total = lax.psum(x, "x")
        index = lax.axis_index("x").astype("float32")

        def step(carry, row):
            return carry + row * index, (total * carry).sum() + lax.psum(row, "x")

        return lax.scan(step, vary(w, ["x"]), x)[1]

    return spmd(body, (P("x"), P()), P("x"))(x, w)


@program(X4, args=args)
def loops_with_several_carries(spmd, x, w):
    def body(x, w):
        def step(carry):
            n, tree, rest = carry
            tree = {"a": lax.pmean(tree["b"], "x") + tree["a"], "b": tree["b"] * 0.5, "none": None}
            return n + 1, tree, (rest[1], rest[0] + lax.psum(1, "x"))

        start = (jnp.int32(0), {"a": w, "b": x[0], "none": None}, (jnp.int32(1), jnp.int32(2)))
        n, tree, rest = lax.while_loop(lambda c: c[0] < 3, step, start)
        return n, tree["a"], tree["b"][None], rest

    return spmd(body, (P("x"), P()), (P(), P(), P("x"), P()))(x, w)


@program(X4, args=args)
def maps_and_associative_scans(spmd, x, w):
    def body(x, w):
        mapped = lax.map(lambda row: lax.psum(row, "x") * w, x)
        mixed = lax.associative_scan(jnp.add, x)
        return mapped, mixed, jnp.cumsum(lax.all_gather(x, "x", tiled=True), 0)

    return spmd(body, (P("x"), P()), (P(), P("x"), P("x")))(x, w)

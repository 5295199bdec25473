"""Specs and meshes: who holds which part of an array."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import integers, normal, vary
from ..table import program
from . import X1, X4, X8, XY, XY_ONE, XYZ, XYZW


def here(axes):
    """A number that tells the coordinates apart."""
    return sum((10.0**k) * lax.axis_index(a).astype("float32") for k, a in enumerate(axes))


@program(XY, XY_ONE, args=lambda s: (normal(24, 24),))
def two_axes_in_every_way(spmd, x):
    specs = [P("x"), P("y", "x"), P(None, "x"), P(("x", "y")), P(("y", "x")), P(("x",), ("y",))]
    specs += [P(None, ("y", "x")), P()]

    def body(*xs):
        return [vary(jnp.sin(x) + here(spmd.axes), spmd.axes) for x in xs]

    outs = [P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x")), P(None, ("x", "y"))]
    outs = [outs[k % len(outs)] for k in range(len(specs))]
    return spmd(body, tuple(specs), outs)(*[x] * len(specs))


@program(XYZW, args=lambda s: (normal(16, 16, 2),))
def many_axes_in_one_dimension(spmd, x):
    first, *others = spmd.axes
    specs = [P(spmd.axes), P(spmd.axes[::-1]), P(tuple(others), first)]
    specs += [P(first, tuple(others[::-1])), P(others[0], None, first)]

    def body(*xs):
        return [vary(jnp.cos(x) + here(spmd.axes), spmd.axes) for x in xs]

    outs = [*specs[:4], specs[1]]
    return spmd(body, tuple(specs), outs)(*[x] * len(specs))


@program(XY, XYZ, args=lambda s: (normal(8, 4), normal(4)))
def outputs_without_some_axes(spmd, x, w):
    def body(x, w):
        h = jnp.tanh(x * w)
        mean = lax.pmean(vary(h, spmd.axes), spmd.axes)
        return h, lax.psum(h, "x"), mean, w, jnp.sum(w), 3.0 * jnp.ones(2)

    outs = (P("x"), P(), P(), P(), P(), P())
    return spmd(body, (P("x"), P()), outs)(x, w)


# A replicated output that in truth differs: JAX hands out what the first device has.
@program(X4, XY, XYZ, args=lambda s: (normal(8, 4),), checks=(False,))
def outputs_that_only_seem_replicated(spmd, x):
    def body(x):
        h = x + here(spmd.axes)
        return h, h, h.sum(), lax.axis_index(spmd.axes[-1])

    return spmd(body, P("x"), (P(), P(spmd.axes[-1]), P(), P()))(x)


@program(XY, args=lambda s: (normal(8, 4), normal(8, 3)))
def unmentioned_axes_with_collectives(spmd, x, z):
    def body(x, z):
        both = lax.psum(x.T @ lax.all_gather(z, "x", tiled=True)[: x.shape[0]], "x")
        shifted = lax.ppermute(vary(z, ["y"]), "y", [(0, 1)])
        return both, shifted, lax.psum_scatter(vary(x, ["y"]), "y", tiled=True)

    return spmd(body, (P("x"), P("x")), (P(), P(("x", "y")), P(("x", "y"))))(x, z)


@program(X8, XY, args=lambda s: (normal(16, 4), integers(16)))
def specs_as_prefixes(spmd, x, i):
    def body(tree, i):
        return {"double": jax.tree.map(lambda v: v * 2, tree), "last": [i, (i[:, None], None)]}

    tree = {"a": x, "b": [x + 1, None, {"c": x[:, 0]}]}
    return spmd(body, (P("x"), P("x")), P("x"))(tree, i)


@program(X1, X4, args=lambda s: (normal(8, 4),))
def empty_and_narrow_arrays(spmd, x):
    def body(x):
        nothing = x[:, :0]
        return nothing, lax.all_gather(nothing, "x", tiled=True), x[:1, :1], lax.psum(nothing, "x")

    return spmd(body, P("x"), (P("x"), P("x"), P("x"), P()))(x)


@program(XY, XYZ, args=lambda s: (normal(8, 4), normal(4, 6)))
def partly_manual(spmd, x, w):
    def body(x, w):
        h = jnp.tanh(x @ w)
        total = lax.psum(h, "x")
        return total, lax.all_gather(h, "x", axis=1, tiled=True), h * here(["x"]), jnp.sum(total)

    outs = (P(), P("x"), P("x"), P())
    return spmd(body, (P("x"), P()), outs, axis_names={"x"})(x, w)


@program(XY, XYZ, args=lambda s: (normal(8, 4),))
def partly_manual_over_a_later_axis(spmd, x):
    last = spmd.axes[-1]

    def body(x):
        def step(carry, _):
            return carry + lax.pmean(jnp.sin(carry), last), lax.pmax(carry, last)

        out, seen = lax.scan(step, x, None, length=3)
        return out, seen, lax.psum_scatter(x, last, scatter_dimension=1, tiled=True)

    outs = (P(last), P(), P(last))
    return spmd(body, P(last), outs, axis_names={last})(x)


@program(XYZ, args=lambda s: (normal(8, 4),))
def partly_manual_over_two_axes(spmd, x):
    def body(x):
        return lax.psum(jnp.sin(x), ("z", "x")), lax.axis_index(("z", "x")) + integers(1)

    return spmd(body, P(("z", "x")), (P(), P(("x", "z"))), axis_names={"x", "z"})(x)


@program(XY, XYZ, args=lambda s: (normal(16, 4),))
def nested(spmd, x):
    def inner(x):
        h = jnp.sin(x) + here(["x", "y"])
        return lax.psum(h, "y"), h, lax.all_gather(h, "y", axis=1, tiled=True)

    def body(x):
        inside = jax.shard_map(
            inner,
            in_specs=P("y"),
            out_specs=(P(), P("y"), P("y")),
            axis_names={"y"},
            check_vma=spmd.check_vma,
        )
        total, h, wide = inside(x * 2)
        return lax.pmean(total, "x"), h, wide

    return spmd(body, P("x"), (P(), P("x"), P("x")), axis_names={"x"})(x)


@program(XY, args=lambda s: (normal(16, 4), normal(4)))
def nested_in_a_scan_with_collectives_on_both_levels(spmd, x, w):
    def inner(x, w):
        return lax.pmean(jnp.tanh(x * w), "y")

    def body(x, w):
        inside = jax.shard_map(
            inner,
            in_specs=(P("y"), P()),
            out_specs=P(),
            axis_names={"y"},
            check_vma=spmd.check_vma,
        )

        def step(carry, scale):
            carry = carry + lax.pmean(inside(x * scale, carry).mean(0), "x")
            return carry, carry.sum()

        return lax.scan(step, w, jnp.arange(3.0))

    return spmd(body, (P("x"), P()), (P(), P()), axis_names={"x"})(x, w)


# With the check on, JAX itself cannot lower the derivative of a nested shard_map.
@program(XY, args=lambda s: (normal(16, 4),), checks=(False,))
def derivative_around_nested(spmd, x):
    def inner(x):
        return lax.psum(jnp.sin(x), "y")

    def body(x):
        inside = jax.shard_map(
            inner, in_specs=P("y"), out_specs=P(), axis_names={"y"}, check_vma=spmd.check_vma
        )
        return lax.psum(inside(x * 2), "x")

    def loss(x):
        return jnp.tanh(spmd(body, P("x"), P(), axis_names={"x"})(x)).sum()

    return jax.grad(loss)(x)

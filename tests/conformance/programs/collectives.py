"""Every collective: over one axis and over tuples, tiled and not, in groups, for every dtype."""

import contextlib
import itertools
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import booleans, integers, normal, vary
from ..table import program
from . import X1, X2, X3, X4, X8, XY, XY_ODD, XY_ONE, XYZ, XYZW


def choices(axes):
    """Each axis, the first two in either order, and all of them."""
    pairs = [axes[:2], axes[1::-1]] if len(axes) > 1 else []
    return [*axes, *pairs, *([axes] if len(axes) > 2 else [])]


def count(sizes, over):
    return prod(sizes[a] for a in ((over,) if isinstance(over, str) else over))


def rest(axes, over):
    """A spec for what is left varying after a reduction over `over`."""
    left = tuple(a for a in axes if a != over and a not in over)
    return P(left) if left else P()


def rows(sizes, *shape, per=2, make=normal):
    return (make(prod(sizes.values()) * per, *shape),)


REDUCTIONS = {"psum": lax.psum, "pmean": lax.pmean, "pmax": lax.pmax, "pmin": lax.pmin}


@program(XY, XY_ODD, XYZW, args=lambda s: rows(s, 3))
def reductions(spmd, x):
    def body(x):
        return {f"{n} {o}": op(x, o) for n, op in REDUCTIONS.items() for o in choices(spmd.axes)}

    specs = {f"{n} {o}": rest(spmd.axes, o) for n in REDUCTIONS for o in choices(spmd.axes)}
    return spmd(body, P(spmd.axes), specs)(x)


@program(X4, XY, args=lambda s: (normal(3), normal(s["x"])))
def reductions_of_what_is_replicated(spmd, x, y):
    def body(x, y):
        everywhere = {n: op(x, "x") for n, op in REDUCTIONS.items()}
        scalar = lax.psum(y[0], "x")
        return everywhere, scalar, lax.psum(scalar, "x"), lax.psum(2, "x") * y, lax.pmean(3.0, "x")

    specs = (dict.fromkeys(REDUCTIONS, P()), P(), P(), P("x"), P())
    return spmd(body, (P(), P("x")), specs)(x, y)


@program(XY, args=lambda s: (normal(8, 3),), checks=(False,))
def reductions_of_what_varies_over_some_of_the_axes(spmd, x):
    def body(x):
        return {n: op(x, ("y", "x")) for n, op in REDUCTIONS.items()}

    return spmd(body, P("x"), P())(x)


DTYPES = ("int32", "uint8", "int8", "uint32", "float16", "bfloat16", "complex64")


def _of_every_dtype(sizes):
    n = 2 * prod(sizes.values())
    real = {t: integers(n, low=0, high=5).astype(t) for t in DTYPES[:4]}
    floats = {t: normal(n, dtype=jnp.dtype(t)) for t in DTYPES[4:]}
    return ({**real, **floats, "bool": booleans(n)},)


@program(XY_ODD, args=_of_every_dtype)
def reductions_of_every_dtype(spmd, xs):
    ordered = {t: x for t, x in xs.items() if t != "complex64"}

    def body(xs, ordered):
        sums = lax.psum(xs, spmd.axes)
        means = lax.pmean({t: xs[t] for t in ("int32", "bool", "bfloat16", "complex64")}, "x")
        return sums, means, lax.pmax(ordered, spmd.axes), lax.pmin(ordered, "x")

    left = rest(spmd.axes, "x")
    return spmd(body, P(spmd.axes), (P(), left, P(), left))(xs, ordered)


@program(X4, args=_of_every_dtype)
def movements_of_every_dtype(spmd, xs):
    ring = [(i, (i + 1) % spmd.sizes["x"]) for i in range(spmd.sizes["x"])]

    def body(xs):
        gathered = lax.all_gather(xs, "x", tiled=True)
        numbers = {t: x for t, x in gathered.items() if t != "bool"}
        return {
            "gathered": gathered,
            "permuted": lax.ppermute(xs, "x", ring[:-1]),
            "exchanged": lax.all_to_all(gathered, "x", 0, 0, tiled=True),
            "scattered": lax.psum_scatter(numbers, "x", tiled=True),
        }

    return spmd(body, P(spmd.axes), P(spmd.axes))(xs)


@program(X3, XY, args=lambda s: (normal(), integers(), normal(2, 3)))
def scalars(spmd, x, i, y):
    def body(x, i, y):
        mine = x * y.sum() + lax.axis_index("x").astype("float32")
        results = [
            lax.psum(mine, "x"),
            lax.pmax(i + lax.axis_index("x"), "x"),
            lax.all_gather(mine, "x"),
            lax.ppermute(mine, "x", [(0, 1)]),
            lax.pmean(i, "x"),
        ]
        return [r if k in (0, 1, 4) else r.reshape(1, -1) for k, r in enumerate(results)]

    specs = [P(), P(), P("x"), P("x"), P()]
    return spmd(body, P(), specs)(x, i, y)


@program(XY, XY_ODD, XYZW, args=lambda s: rows(s, 3))
def all_gathers(spmd, x):
    forms = [(0, True), (1, False), (0, False), (2, False), (1, True), (-1, False)]

    def body(x):
        results = {}
        for k, over in enumerate(choices(spmd.axes)):
            for axis, tiled in forms[:2] if k else forms:
                gathered = lax.all_gather(x, over, axis=axis, tiled=tiled)
                results[f"{over} {axis} {tiled}"] = vary(gathered, spmd.axes)
        return results

    return spmd(body, *_all(spmd))(x)


def _all(spmd):
    return P(spmd.axes), P(spmd.axes)


@program(X4, XY, args=lambda s: rows(s, 3))
def all_gathers_to_invarying(spmd, x):
    def body(x):
        def full(x):
            return lax.all_gather(x, "x", axis=1, tiled=True, to="invarying")

        stacked = lax.all_gather(x, "x", to="invarying")
        return full(x), stacked, jax.grad(lambda x: jnp.sin(full(x)).sum())(x)

    left = rest(spmd.axes, "x")
    stacked = P(None, *left)
    return spmd(body, P(spmd.axes), (left, stacked, P(spmd.axes)))(x)


# With the check off, 0.10.2 refuses to gather to 'reduced'.
@program(X4, XY, args=lambda s: (normal(8, 3), normal(4, 3)), checks=(True,))
def all_gathers_to_reduced(spmd, x, w):
    def body(x, w):
        def loss(w):
            full = lax.all_gather(w, "x", tiled=True, to="reduced")
            return jnp.tanh(x @ full.T).sum()

        return jax.grad(loss)(w)

    return spmd(body, (P("x"), P("x")), P("x"))(x, w)


@program(X4, XY, args=lambda s: (normal(8, 3), normal(3)))
def casts_to_reduced(spmd, x, w):
    def body(x, w):
        reduced = lax.pcast(w, "x", to="reduced")
        return lax.psum(jax.grad(lambda w: jnp.tanh(x @ w).sum())(reduced), "x")

    return spmd(body, (P("x"), P()), P())(x, w)


@program(X4, XY, args=lambda s: (normal(16, 3),), checks=(True,))
def casts_to_unreduced(spmd, x):
    def body(x):
        unreduced = lax.pcast(jnp.tanh(x), "x", to="unreduced")
        return lax.psum(unreduced, "x"), lax.psum_scatter(unreduced, "x", tiled=True)

    return spmd(body, P("x"), (P(), P("x")))(x)


@program(XY, args=lambda s: (normal(3), normal(8, 3)))
def casts_to_varying(spmd, w, x):
    def body(w, x):
        local = lax.pcast(w, spmd.axes, to="varying")
        return lax.pmean(jax.grad(lambda w: jnp.tanh(x @ w).sum())(local), spmd.axes)

    return spmd(body, (P(), P("x")), P())(w, x)


@program(X4, XYZ, args=lambda s: rows(s, 3))
def psum_scatters(spmd, x):
    def body(x):
        results = {}
        for over in choices(spmd.axes):
            n = count(spmd.sizes, over)
            weights = jnp.arange(1.0, 2 * n + 1).reshape(1, 1, 2 * n)
            wide = vary(x[:, :, None] * weights, spmd.axes)
            square = wide.transpose(2, 0, 1)[:n]
            results[f"{over} tiled"] = lax.psum_scatter(wide, over, scatter_dimension=2, tiled=True)
            results[f"{over} first"] = lax.psum_scatter(square, over)
            middle = square.transpose(1, 0, 2)
            results[f"{over} middle"] = lax.psum_scatter(middle, over, scatter_dimension=1)
        return results

    return spmd(body, *_all(spmd))(x)


@program(X3, XY, args=lambda s: rows(s, 3))
def all_to_alls(spmd, x):
    def body(x):
        results = {}
        for k, over in enumerate(choices(spmd.axes)):
            n = count(spmd.sizes, over)
            cube = x[:, None, :] * jnp.arange(1.0, 2 * n + 1).reshape(1, 2 * n, 1)
            for concat in [k % 3] if k else [0, 1, 2]:
                tiled = lax.all_to_all(cube, over, 1, concat, tiled=True)
                whole = lax.all_to_all(cube[:, :n], over, 1, concat)
                results |= {f"{over} {concat}": tiled, f"{over} {concat} whole": whole}
        return results

    return spmd(body, *_all(spmd))(x)


def permutations(n):
    """A ring, its reverse, a part of it, a swap, one arrow, and none."""
    ring = [(i, (i + 1) % n) for i in range(n)]
    return [ring, [(b, a) for a, b in ring], ring[:-1], [(0, n - 1), (n - 1, 0)][:n], ring[:1], []]


@program(X8, X1, XY, XYZ, args=lambda s: rows(s, 3))
def ppermutes(spmd, x):
    def body(x):
        results = {}
        for over in [*spmd.axes, spmd.axes]:
            for k, perm in enumerate(permutations(count(spmd.sizes, over))):
                results[f"{over} {k}"] = lax.ppermute(x, over, perm)
        return results

    return spmd(body, *_all(spmd))(x)


@contextlib.contextmanager
def _any_order():
    """JAX 0.12 refuses to permute over axes in another order than the mesh's, unless told to."""
    option = "jax_raise_on_ppermute_sort_diff"
    before = getattr(jax.config, option, None)
    if before is None:
        yield
        return
    jax.config.update(option, False)
    yield
    jax.config.update(option, before)


@program(XY, args=lambda s: rows(s, 3), setting=_any_order)
def ppermutes_over_axes_in_another_order(spmd, x):
    def body(x):
        return lax.ppermute(x, ("y", "x"), [(i, (i + 3) % 8) for i in range(7)])

    return spmd(body, *_all(spmd))(x)


@program(X8, args=lambda s: rows(s, 3))
def pshuffles_and_pswapaxes(spmd, x):
    def body(x):
        n = spmd.sizes["x"]
        square = jnp.tanh(x[:, :, None] * jnp.arange(1.0, n + 1))
        return (
            lax.pshuffle(x, "x", [(3 * i + 1) % n for i in range(n)]),
            lax.pswapaxes(square, "x", 2),
            lax.pswapaxes(square[0].T, spmd.axes[0], 0),
        )

    return spmd(body, *_all(spmd))(x)


def _pbroadcast_by_gathering(spmd, x):
    def body(x):
        return {s: lax.all_gather(x, "x")[s] for s in range(spmd.sizes["x"])}

    return spmd(body, *_all(spmd))(x)


# XLA has no collective broadcast on the CPU.
@program(X4, XY, args=lambda s: rows(s, 3), stand_in=_pbroadcast_by_gathering)
def pbroadcasts(spmd, x):
    def body(x):
        return {s: lax.pbroadcast(x, "x", s) for s in range(spmd.sizes["x"])}

    return spmd(body, *_all(spmd))(x)


@program(XY, XY_ONE, XYZW, args=lambda s: rows(s))
def indices_and_sizes(spmd, x):
    def body(x):
        orders = [o for n in (1, 2) for o in itertools.permutations(spmd.axes, n)]
        indices = {str(o): jnp.full_like(x, lax.axis_index(o), dtype="int32") for o in orders}
        sizes = {str(o): x * lax.axis_size(o) for o in [*orders, spmd.axes]}
        return indices, sizes

    return spmd(body, *_all(spmd))(x)


GROUPS = [[0, 3], [1, 2]]


@program(X4, XY, args=lambda s: (normal(16, 4),), checks=(False,))
def grouped_reductions(spmd, x):
    def body(x):
        even = {n: op(x, "x", axis_index_groups=GROUPS) for n, op in REDUCTIONS.items()}
        odd = lax.psum(x, "x", axis_index_groups=[[0, 3, 1], [2]])
        largest = lax.pmax(x, "x", axis_index_groups=[[2, 3, 1], [0]])
        total = lambda x: lax.psum(jnp.sin(x), "x", axis_index_groups=GROUPS).sum()  # noqa: E731
        return even, odd, largest, jax.grad(total)(x)

    return spmd(body, P("x"), P("x"))(x)


@program(X4, XY, args=lambda s: (normal(16, 4),))
def grouped_movements(spmd, x):
    def body(x):
        return (
            lax.all_gather(x, "x", axis_index_groups=GROUPS),
            lax.all_gather(x, "x", axis=1, tiled=True, axis_index_groups=GROUPS),
            lax.psum_scatter(x, "x", axis_index_groups=GROUPS, tiled=True),
            lax.psum_scatter(x[:2], "x", axis_index_groups=GROUPS),
            lax.all_to_all(x, "x", 0, 1, axis_index_groups=GROUPS, tiled=True),
            lax.all_to_all(x[:, :2], "x", 1, 0, axis_index_groups=[[1, 3], [2, 0]]),
            lax.pmax(x, "x", axis_index_groups=GROUPS),
            lax.pswapaxes(x[:2], "x", 0, axis_index_groups=GROUPS),
        )

    return spmd(body, P("x"), P("x"))(x)


@program(XY, args=lambda s: (normal(16, 4),), checks=(False,))
def groups_over_two_axes(spmd, x):
    groups = [[0, 3, 1, 2], [4, 5, 7, 6]]

    def body(x):
        total = lax.psum(x, ("x", "y"), axis_index_groups=groups)
        return total, lax.all_gather(x, ("x", "y"), axis_index_groups=groups, tiled=True)

    return spmd(body, *_all(spmd))(x)


@program(X1, args=lambda s: (normal(4, 4),))
def everything_on_one_device(spmd, x):
    def body(x):
        return {
            "sum": lax.psum(x, "x"),
            "gather": vary(lax.all_gather(x, "x"), ["x"]).sum(0),
            "scatter": lax.psum_scatter(x, "x", tiled=True),
            "exchange": lax.all_to_all(x, "x", 0, 1, tiled=True),
            "permute": lax.ppermute(x, "x", [(0, 0)]),
            "index": x * lax.axis_index("x").astype(x.dtype),
        }

    kept = ("gather", "scatter", "exchange", "permute", "index")
    return spmd(body, P("x"), {"sum": P()} | dict.fromkeys(kept, P("x")))(x)


@program(X2, XY, args=lambda s: (normal(8, 4), None, {"a": integers(8), "b": [None, normal(8)]}))
def collectives_of_pytrees(spmd, x, nothing, tree):
    def body(x, nothing, tree):
        assert nothing is None
        summed = lax.psum((x, nothing, tree), "x")
        gathered = lax.all_gather(tree, "x", tiled=True)
        return summed, gathered, lax.ppermute({"x": x, "none": nothing}, "x", [(0, 1), (1, 0)])

    return spmd(body, (P("x"), None, P("x")), (P(), P("x"), P("x")))(x, nothing, tree)

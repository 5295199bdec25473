"""How programs are put together: closures, several shard_maps, trees, loops around them."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import integers, normal, vary
from ..table import program
from . import X4, XY, XYZ


@program(XY, args=lambda s: (normal(8, 3), normal(3)))
def closures_over_arrays_and_tracers(spmd, x, w):
    constant = jnp.asarray(normal(3, seed=1))
    table = normal(4, 3, seed=2)

    def outer(w):
        doubled = w * 2

        def body(x):
            row = jnp.asarray(table)[lax.axis_index("x")]
            return lax.psum(jnp.sum(x * doubled + constant * row), "x")

        return spmd(body, P("x"), P())(x)

    return outer(w), jax.grad(outer)(w), jax.jit(outer)(w)


@program(X4, XY, args=lambda s: (normal(8, 3), normal(3)))
def several_in_one_program(spmd, x, w):
    def first(x, w):
        return jnp.tanh(x * w), lax.psum(x.sum(0), "x")

    def second(h, total):
        return lax.all_gather(h * total, "x", axis=1, tiled=True)

    h, total = spmd(first, (P("x"), P()), (P("x"), P()))(x, w)
    wide = spmd(second, (P("x"), P()), P("x"))(jnp.sin(h), total / 2)
    again = spmd(first, (P("x"), P()), (P("x"), P()))(h[::-1], w + 1)
    return wide @ wide.T, again, h.mean()


@program(XY, args=lambda s: (normal(8, 3),))
def one_after_the_other_on_other_parts(spmd, x):
    rows = spmd(lambda x: x + lax.axis_index("x").astype(x.dtype), P("x"), P("x"))(x)
    turned = rows.T @ rows[:, :1] * jnp.ones((3, 4))
    columns = spmd(lambda c: c * lax.psum(c, "x"), P(None, "x"), P(None, "x"))(turned)
    return columns.sum(), spmd(lambda c: lax.pmax(c, "x"), P(None, "x"), P())(columns)


AUTO = (jax.sharding.AxisType.Auto,) * 2


@program(X4, args=lambda s: (normal(8, 3),))
def two_meshes_that_share_an_axis_name(spmd, x):
    if isinstance(spmd.mesh, jax.sharding.Mesh):
        smaller = jax.sharding.Mesh(spmd.mesh.devices.reshape(2, 2), ("x", "y"), axis_types=AUTO)
    else:
        smaller = jax.sharding.AbstractMesh((2, 2), ("x", "y"), axis_types=AUTO)

    def body(x):
        return lax.psum(x, "x") * lax.axis_size("x"), x + lax.axis_index("x").astype(x.dtype)

    total, rows = spmd(body, P("x"), (P(), P("x")))(x)
    other, more = spmd(body, P("x"), (P(), P("x")), mesh=smaller)(rows)
    return total, other, more, spmd(lambda x: lax.psum(x, "y"), P("y"), P(), mesh=smaller)(more)


@program(X4, args=lambda s: (normal(8, 3), normal(3)))
def shard_map_inside_loops_and_branches(spmd, x, w):
    def body(w, x):
        return lax.pmean(jnp.tanh(x * w).mean(0), "x")

    inside = spmd(body, (P(), P("x")), P())

    def step(w, scale):
        w = w - 0.1 * jax.grad(lambda w: inside(w, x).sum())(w) * scale
        return w, inside(w, x).sum()

    trained = lax.scan(step, w, jnp.arange(1.0, 4.0))
    looped = lax.fori_loop(0, 2, lambda i, w: inside(w, x), w)
    far = lax.while_loop(lambda w: jnp.abs(w).max() > 0.5, lambda w: 0.5 * inside(w, x) + 0.1, w)
    chosen = lax.cond(w.sum() > 0, lambda w: inside(w, x), lambda w: inside(-w, x) * 2, w)
    return trained, looped, far, chosen


@program(XY, args=lambda s: ({"x": normal(8, 3), "none": None, "i": [integers(8), ()]}, None))
def trees_with_none(spmd, tree, nothing):
    def body(tree, nothing):
        assert nothing is None
        assert tree["none"] is None
        total = lax.psum(tree, "x")
        return {"total": total, "none": None, "own": (tree["x"] + 1, None, [])}, nothing

    outs = ({"total": P(), "none": None, "own": P("x")}, None)
    return spmd(body, (P("x"), None), outs)(tree, nothing)


@contextlib.contextmanager
def _saying_so():
    """It is said that the mesh has no part in it (see `test_arguments`)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*there is no shard_map in it")
        yield


@program(
    X4,
    args=lambda s: (normal(8, 3),),
    setting=_saying_so,
)
def nothing_sharded_at_all(spmd, x):
    return {"sum": x.sum(), "same": x, "constant": 3, "none": None}


@program(X4, XY, args=lambda s: (normal(8, 3),))
def constants_and_arguments_passed_through(spmd, x):
    def body(x):
        here = vary(jnp.arange(2.0), ["x"])
        return x, x, jnp.ones((2, 2)), here, jnp.int32(4), lax.psum(1, "x") * jnp.ones(1)

    return spmd(body, P("x"), (P("x"), P("x"), P(), P("x"), P(), P()))(x)


@program(XYZ, args=lambda s: (normal(8, 4), normal(4, 8), normal(8, 4)))
def a_step_over_three_axes(spmd, x, w1, w2):
    """Data over x, tensors over y, a ring over z."""

    def body(x, w1, w2):
        def loss(w1, w2):
            h = jax.nn.gelu(x @ w1)
            out = lax.psum(h @ w2, "y")
            out = out + lax.ppermute(out, "z", [(0, 1), (1, 0)])
            return lax.pmean(jnp.mean(out**2), ("x", "z"))

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(w1, w2)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, (w1, w2), gradients)

    ins = (P(("x", "z")), P(None, "y"), P("y"))
    if not spmd.check_vma:
        return spmd(lambda *a: body(*a)[0], ins, P())(x, w1, w2)
    return spmd(body, ins, (P(), (P(None, "y"), P("y"))))(x, w1, w2)

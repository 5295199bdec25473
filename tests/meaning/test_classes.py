"""Three classes of false proofs: booleans are no ring, integers wrap around, NaN is data.

Every wrong program here differs between one and four real devices, or from its reference, on the
arguments given; none may be proved. The right ones beside them must be.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

D, R = P("data"), P()
COUNT = np.arange(16, dtype=np.float32)
SOME_NAN = np.where(np.isin(COUNT, [1, 6, 7]), np.float32(np.nan), COUNT)
INFINITE = np.where(np.isin(COUNT, [1, 6]), np.float32(np.inf), COUNT)
LONG = np.arange(1024, dtype=np.float32)
ROWS = np.arange(2048, dtype=np.float32).reshape(1024, 2)
PLACES = np.zeros(1024, np.int32)
TRUE = np.ones((16, 2), bool)
BYTES = (np.arange(1024) % 251).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Program:
    """The body of a `shard_map`, its specs and arguments; a plain function that is right."""

    body: Callable[..., Any]
    ins: Any
    out: Any
    args: tuple[Any, ...]
    reference: Callable[..., Any] | None = None

    def __call__(self, *args, mesh):
        return jax.shard_map(self.body, mesh=mesh, in_specs=self.ins, out_specs=self.out)(*args)

    def on(self, count):
        """The result on real devices."""
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:count]), ("data",))
        return np.asarray(jax.jit(lambda *args: self(*args, mesh=mesh))(*self.args))

    def wanted(self):
        return self.on(1) if self.reference is None else np.asarray(self.reference(*self.args))

    def proved(self):
        shapes = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in self.args]
        mesh = sw.mesh(data=4)
        return sw.prove(self, *shapes, mesh=mesh, run=False, reference=self.reference).status


def total(x, dtype=jnp.int32):
    return lax.psum(x.astype(dtype), "data")


def counter(start):
    """The iterations of a loop, counted in the dtype of `start`, added to its rows."""
    one = jnp.ones_like(start)
    return lambda x: lax.scan(lambda c, r: (c + one, r + c.astype(r.dtype)), start, x)[1]


def rows(x, dtype):
    return jnp.arange(x.shape[0], dtype=dtype)


def looked_up_in_few_bits(x):
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    return lax.gather(x, rows(x, jnp.uint8)[:, None], numbers, (1,), mode="clip")


def own_slice(x):
    start = (lax.axis_index("data") * 512).astype(jnp.uint8)
    return lax.dynamic_slice(x, (start,), (512,))


def own_place(x):
    start = (lax.axis_index("data") * 512).astype(jnp.uint8)
    return lax.psum(lax.dynamic_update_slice(jnp.zeros(2048, x.dtype), x, (start,)), "data")


def convolved(x):
    window = jnp.ones((1, 2, x.shape[0]), bool)
    return total(lax.conv_general_dilated(x.T[None], window, (1,), "VALID"))


def skipped(is_bad):
    return lambda g: jnp.where(is_bad(g), g * 0 + 1, g)


def averaged(ok):
    """The mean over devices of each device's own mean, where it is `ok`."""
    return lambda g: lax.pmean(jnp.where(ok(g.mean()), g.mean(), 0.0), "data")


WIDE = np.arange(2048, dtype=np.float32)

WRONG = {
    # booleans are no ring
    "bool matmul": Program(lambda a, b: total(a.T @ b), (D, D), R, (TRUE, TRUE)),
    "bool matmul to float": Program(
        lambda a, b: total(a.T @ b, jnp.float32), (D, D), R, (TRUE, TRUE)
    ),
    "bool einsum": Program(
        lambda a, b: total(jnp.einsum("ij,ik->jk", a, b), jnp.int8), (D, D), R, (TRUE, TRUE)
    ),
    "bool vdot": Program(lambda a: total(jnp.vdot(a[:, 0], a[:, 1])), (D,), R, (TRUE,)),
    "bool convolution": Program(convolved, (D,), R, (TRUE,)),
    "any is counted": Program(lambda a: total(a.any()), (D,), R, (TRUE,)),
    "all is counted": Program(lambda a: total(a.all()), (D,), R, (TRUE,)),
    "bools are scattered": Program(
        lambda a: total(jnp.zeros(4, bool).at[jnp.zeros(a.shape[0], int)].max(a[:, 0])),
        *((D,), R, (TRUE,)),
    ),
    # positions and sums wrap around
    "uint8 positions of rows": Program(
        lambda x, y: x[rows(x, jnp.uint8), y], (D, D), D, (ROWS, PLACES)
    ),
    "uint8 positions": Program(lambda x: x[rows(x, jnp.uint8)], (D,), D, (ROWS,)),
    "uint8 positions of bytes": Program(looked_up_in_few_bits, (D,), D, (BYTES,)),
    "uint8 take_along_axis": Program(
        lambda x: jnp.take_along_axis(x, rows(x, jnp.uint8)[:, None], 0), (D,), D, (ROWS,)
    ),
    "at set": Program(lambda x: jnp.zeros_like(x).at[rows(x, jnp.uint8)].set(x), (D,), D, (LONG,)),
    "at add": Program(lambda x: jnp.zeros_like(x).at[rows(x, jnp.uint8)].add(x), (D,), D, (LONG,)),
    "at add by column": Program(
        lambda x, y: jnp.zeros_like(x).at[rows(x, jnp.uint8), y].add(1.0),
        *((D, D), D, (ROWS, PLACES)),
    ),
    "uint8 argmax": Program(
        lambda x: lax.argmax(x, 0, jnp.uint8).astype(jnp.int32),
        *((R,), R, (LONG,), lambda x: np.argmax(x).astype(np.int32)),
    ),
    "a slice at a uint8": Program(own_slice, (R,), D, (WIDE,), lambda x: x + 0),
    "an update at a uint8": Program(own_place, (D,), R, (WIDE,), lambda x: x + 0),
    "int8 sums are compared": Program(
        lambda x: total(x.sum(dtype=jnp.int8) > 0), (D,), R, (np.full(64, 100, np.int8),)
    ),
    "uint8 to int8": Program(
        lambda x: x.astype(jnp.int8).astype(jnp.int32),
        *((D,), D, (np.full(16, 200, np.uint8),), lambda x: x + jnp.int32(0)),
    ),
    "abs in int8": Program(
        lambda x: jnp.abs(x).astype(jnp.int32),
        *((D,), D, (np.full(16, -128, np.int8),), lambda x: jnp.abs(x.astype(jnp.int32))),
    ),
    "a product in int8": Program(
        lambda x: jnp.prod(x, axis=1, dtype=jnp.int8).astype(jnp.int32),
        *((D,), D, (np.full((16, 4), 5, np.int8),)),
        lambda x: jnp.prod(x.astype(jnp.int32), axis=1),
    ),
    "int4": Program(
        lambda x: x.astype(jnp.int4).astype(jnp.int32),
        *((D,), D, (np.arange(64, dtype=np.int32),), lambda x: x + 0),
    ),
    "uint32 to int32": Program(
        lambda x: x.astype(jnp.int32).astype(jnp.float32),
        *((D,), D, (np.full(16, 2**31 + 5, np.uint32),), lambda x: x.astype(jnp.float32)),
    ),
    "int32 positions that are too large": Program(
        lambda x: rows(x, jnp.int32) * 2**28 > 0,
        *((R,), R, (COUNT,), lambda x: rows(x, jnp.int32) > 0),
    ),
    "a uint8 counter": Program(
        counter(np.uint8(0)), (R,), R, (LONG,), lambda x: x + jnp.arange(1024.0)
    ),
    # whether a number is NaN is a question about the data
    "each imputes its own mean": Program(
        lambda x: jnp.where(jnp.isnan(x), jnp.nanmean(x), x), (D,), D, (SOME_NAN,)
    ),
    "skips where any is NaN": Program(skipped(lambda g: jnp.isnan(g).any()), (D,), D, (SOME_NAN,)),
    "skips unless all are finite": Program(
        skipped(lambda g: ~jnp.isfinite(g).all()), (D,), D, (SOME_NAN,)
    ),
    "counts devices with NaN": Program(lambda x: total(jnp.isnan(x).any()), (D,), R, (SOME_NAN,)),
    "counts devices without": Program(lambda x: total(jnp.isfinite(x).all()), (D,), R, (SOME_NAN,)),
    "means that are numbers": Program(averaged(lambda m: ~jnp.isnan(m)), (D,), R, (SOME_NAN,)),
    "means that equal themselves": Program(averaged(lambda m: m == m), (D,), R, (SOME_NAN,)),
    "means that are no less": Program(averaged(lambda m: m >= m), (D,), R, (SOME_NAN,)),
    "means that are less than more": Program(averaged(lambda m: m < m + 1), (D,), R, (SOME_NAN,)),
    "means times zero": Program(averaged(lambda m: m * 0 == 0), (D,), R, (SOME_NAN,)),
    "means less themselves": Program(averaged(lambda m: m - m == 0), (D,), R, (SOME_NAN,)),
    "means rounded": Program(averaged(lambda m: m == m.astype(jnp.bfloat16)), (D,), R, (SOME_NAN,)),
    "a mean that cancels": Program(
        lambda x: (x + x.mean()) - x.mean() == x,
        (D,),
        D,
        (np.where(COUNT == 6, np.nan, 0 * COUNT),),
    ),
    "zeros times NaN": Program(
        lambda x: total(jnp.isnan(jnp.zeros((1, x.shape[0])) @ x[:, None]).any()),
        *((D,), R, (SOME_NAN,)),
    ),
    "NaN becomes the first": Program(lambda x: jnp.nan_to_num(x, nan=x[0]), (D,), D, (SOME_NAN,)),
    "means without NaN": Program(
        lambda x: lax.pmean(jnp.nan_to_num(x.mean()), "data"), (D,), R, (SOME_NAN,)
    ),
    "infinities are capped": Program(
        lambda x: lax.psum(jnp.nan_to_num(x.max(), posinf=7.0), "data"), (D,), R, (INFINITE,)
    ),
    "infinities are counted": Program(lambda x: total(jnp.isinf(x).any()), (D,), R, (INFINITE,)),
    "nanmax": Program(lambda x: lax.pmean(jnp.nanmax(x), "data"), (D,), R, (SOME_NAN,)),
    "a branch": Program(
        lambda x: lax.cond(jnp.isnan(x.sum()), jnp.ones_like, lambda x: x, x),
        *((D,), D, (SOME_NAN,)),
    ),
    "a loop": Program(
        lambda x: lax.while_loop(jnp.isnan, jnp.ones_like, x.sum()) * jnp.ones_like(x),
        *((D,), D, (SOME_NAN,)),
    ),
    "the largest, unless it is NaN": Program(
        lambda x: total(jnp.where(jnp.isnan(x.max()), 0.0, x.max())), (D,), R, (SOME_NAN,)
    ),
    "what a softmax subtracts": Program(
        lambda x, y: jnp.isnan(jax.nn.softmax(x - y.mean())), (D, D), D, (COUNT, SOME_NAN)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_not_proved(name):
    program = WRONG[name]
    got, want = program.on(4), program.wanted()
    differs = got.shape != want.shape or not np.array_equal(
        got.astype(float), want.astype(float), equal_nan=True
    )
    assert differs, "the arguments do not show that this program is wrong"
    assert program.proved() != "proved"


def nan_mean(x):
    return lax.psum(jnp.nansum(x), "data") / lax.psum((~jnp.isnan(x)).sum(), "data")


def gated(w, g):
    finite = jnp.isfinite(lax.psum(g.sum(0), "data")).all()
    return jnp.where(finite, w - 0.1 * lax.pmean(g.mean(0), "data"), w)


def weighted_by_zero(w, x):
    def loss(w):
        return lax.pmean((x @ w).mean() + 0.0 * ((x @ w) ** 2).mean(), "data")

    return jax.grad(loss)(w)


GRID = COUNT.reshape(4, 4)

RIGHT = {
    "all impute one mean": Program(
        lambda x: jnp.where(jnp.isnan(x), nan_mean(x), x), (D,), D, (SOME_NAN,)
    ),
    "skips where any is NaN": Program(
        skipped(lambda g: lax.pmax(jnp.isnan(g).any(), "data")), (D,), D, (SOME_NAN,)
    ),
    "skips unless all are finite": Program(
        skipped(lambda g: ~lax.pmin(jnp.isfinite(g).all(), "data")), (D,), D, (SOME_NAN,)
    ),
    "counts NaN": Program(lambda x: lax.psum(jnp.isnan(x).sum(), "data"), (D,), R, (SOME_NAN,)),
    "softplus": Program(lambda x: lax.pmean(jax.nn.softplus(x).mean(), "data"), (D,), R, (COUNT,)),
    "medians of rows": Program(lambda x: jnp.median(x, axis=1), (D,), D, (GRID,)),
    "a step where all is finite": Program(gated, (R, D), R, (GRID[0], GRID)),
    "a loss with weight zero": Program(weighted_by_zero, (R, D), R, (GRID[0], GRID)),
    "zeros in a product": Program(
        lambda w, x: jnp.zeros_like(x) @ w + x @ w, (R, D), D, (GRID, GRID)
    ),
    "positions that fit": Program(
        lambda x, y: x[rows(x, jnp.uint8), y], (D, D), D, (ROWS[:64], PLACES[:64])
    ),
    "a sum in uint8": Program(
        lambda x: lax.psum(x.sum(dtype=jnp.uint8), "data"), (D,), R, (BYTES,)
    ),
    "images": Program(
        lambda x: lax.pmean((x.astype(jnp.float32) / 255).mean(), "data"), (D,), R, (BYTES,)
    ),
    "no elements": Program(
        lambda x: lax.psum(x.reshape(-1, 2, 4).sum(), "data"),
        *((D,), R, (np.zeros((0, 8), np.float32),)),
    ),
    "a complex counter": Program(
        lambda x: lax.scan(lambda c, r: (c + 1j, r * c), np.complex64(0), x)[1],
        *((P(None, "data"),), P(None, "data"), (np.ones((3, 4), np.complex64),)),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_proved(name):
    program = RIGHT[name]
    np.testing.assert_allclose(program.on(4), program.wanted(), rtol=1e-5, equal_nan=True)
    assert program.proved() == "proved"

"""Sharded programs of each group of primitives: right ones pass, an error of 1 % is seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.experimental import pallas

from tests.support import check, normal

MESH = {"data": [1, 2]}
WEIGHT, ROWS = normal(4, 4, seed=1), normal(8, 4)


def total(x):
    return lax.psum(x, "data")


def whole(x):
    return lax.all_gather(x, "data", tiled=True)


def gradient(f):
    """The gradient, for a weight, of the mean of what `f` gives; `check_vma` is off."""
    return lambda w, x: lax.pmean(jax.grad(lambda w: f(w, x).mean())(w), "data")


@jax.custom_jvp
def tanh(x):
    return jnp.tanh(x.astype("bfloat16")).astype(x.dtype)


@tanh.defjvp
def tanh_jvp(primals, tangents):
    y = tanh(*primals).astype("float16")
    return tanh(*primals), (tangents[0].astype("float16") * (1 - y * y)).astype("float32")


@jax.custom_vjp
def stored(x):
    return x.astype("float8_e4m3fn").astype(x.dtype)


stored.defvjp(
    lambda x: (stored(x), x.astype("float8_e5m2")),
    lambda r, g: ((g.astype("bfloat16") * jnp.cos(r.astype("bfloat16"))).astype(g.dtype),),
)


def contracted(x, w, dtype, result):
    dims = (((0,), (0,)), ((), ()))
    x, w = x.astype(dtype), w.astype(dtype)
    return total(lax.dot_general(x, w, dims, preferred_element_type=result)).astype("float32")


def convolved(w, x):
    images, kernel = x.reshape(-1, 1, 2, 2).astype("bfloat16"), w.reshape(4, 1, 2, 2)
    return lax.conv(images, kernel.astype("bfloat16"), (1, 1), "SAME") ** 2


def largest(a, b):
    first = a[0] >= b[0]
    return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])


def newton(f, guess):
    return lax.fori_loop(0, 30, lambda _, y: y - f(y) / (2 * y), guess)


def kernel(x, out):
    out[...] = x[...] * 2


def doubled(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(kernel, out_shape=shape, interpret=True)(x)


def spd(w, x):
    return total(x.T @ x) + jnp.eye(4, dtype=x.dtype)


BRANCHES = [jnp.sin, lambda x: x, lambda x: (x * 2).astype("bfloat16").astype(x.dtype)]
PROGRAMS = {
    "switch": lambda w, x: lax.switch(total(x.sum()).astype(int) % 3, BRANCHES, total(x.sum(0))),
    "custom_jvp that casts": gradient(lambda w, x: tanh(x @ w)),
    "custom_vjp that stores float8": gradient(lambda w, x: stored(x @ w)),
    "float8 products": lambda w, x: contracted(x, x, "float8_e4m3fn", "bfloat16"),
    "int8 products": lambda w, x: contracted(x * 20, x * 20, "int8", "int32"),
    "precisions": lambda w, x: total(jnp.dot(x.T, x, precision=("high", "highest"))),
    "convolution, backwards": gradient(convolved),
    "ragged products": lambda w, x: total(
        lax.ragged_dot(x.T.astype("bfloat16"), x[None] @ w, jnp.array([4]))
    ),
    "a reduction of pairs": lambda w, x: lax.reduce(
        (whole(x).astype("float16"), lax.broadcasted_iota("int32", whole(x).shape, 0)),
        (jnp.float16(-jnp.inf), jnp.int32(0)), largest, (0,),
    )[0].astype("float32"),
    "an associative scan": lambda w, x: lax.associative_scan(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (whole(jnp.tanh(x)), whole(x))
    )[1],
    "conjugate gradients": lambda w, x: jax.scipy.sparse.linalg.cg(
        lambda v: spd(w, x) @ v, w[0], tol=1e-12, maxiter=50
    )[0],
    "a root": lambda w, x: lax.custom_root(
        lambda y: y * y - total(x * x).sum(0), jnp.ones(4), newton, lambda g, y: y / g(y * 0 + 1)
    ),
    "factors": lambda w, x: jnp.linalg.cholesky(spd(w, x)) + jnp.linalg.inv(spd(w, x)),
    "complex numbers": lambda w, x: jnp.abs(jnp.fft.fft(total(jnp.exp(1j * x)).sum(0))),
    "dropout": lambda w, x: total(x.sum(0)) * (1 + jax.random.bernoulli(jax.random.key(1), 0.5)),
    "integers of 4 bits": lambda w, x: total((x * 3).astype("int4").astype("float32").sum(0)),
    "float4": lambda w, x: total(x.astype("float4_e2m1fn").astype("float32").sum(0)),
    "float8_e3m4": lambda w, x: total(x.astype("float8_e3m4").astype("float32").sum(0)),
    "weak types": lambda w, x: lax.scan(lambda c, _: (c * 0.5, c + 1), total(x.sum(0)), None, 3)[1],
    "a Pallas kernel": lambda w, x: total(doubled(x).sum(0)),
}  # fmt: skip


def sharded(body, by=0.0):
    """The program, with its last element made wrong on several devices."""

    def wrong(w, x):
        result = body(w, x)
        slip = by * (lax.axis_size("data") > 1)
        return result.at[(-1,) * result.ndim].multiply(1 + slip)

    def program(w, x, *, mesh):
        specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": False}
        return jax.shard_map(wrong if by else body, mesh=mesh, **specs)(w, x)

    return program


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_right_passes_and_wrong_is_seen(name, x64):
    with jax.enable_x64(x64):
        args = np.float32(WEIGHT), np.float32(ROWS)
        assert (verdict := check(sharded(PROGRAMS[name]), *args, mesh=MESH)), verdict
        assert not check(sharded(PROGRAMS[name], 0.01), *args, mesh=MESH)
        assert jax.config.jax_enable_x64 is x64

"""What is not SPMD at all but has to survive being run once per shard."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import booleans, integers, normal, vary
from ..table import program
from . import X3, X4, XY


def positive(x):
    return x @ x.mT + 3 * jnp.eye(x.shape[-1])


@program(X3, args=lambda s: (normal(6, 3, 3), normal(6, 3)))
def linear_algebra(spmd, a, b):
    def body(a, b):
        matrices = positive(a)
        lower = jnp.linalg.cholesky(matrices)
        solved = jnp.linalg.solve(matrices, b[..., None])
        shared = jnp.linalg.solve(lax.pmean(matrices.mean(0), "x"), b.T)
        values = jnp.linalg.eigvalsh(matrices)
        triangular = jax.scipy.linalg.solve_triangular(lower, b[..., None], lower=True)
        gradient = jax.grad(lambda a: jnp.linalg.slogdet(positive(a))[1].sum())(a)
        return lower, solved, shared.T, values, triangular, gradient

    return spmd(body, (P("x"), P("x")), P("x"))(a, b)


@program(X3, args=lambda s: (normal(12, 5), integers(12, low=0, high=5)))
def sorting_and_indexing(spmd, x, i):
    def body(x, i):
        index = lax.axis_index("x")
        return {
            "sort": jnp.sort(x, axis=1),
            "argsort": jnp.argsort(x, axis=1),
            "top": lax.top_k(x, 2),
            "gather": x[:, i],
            "take": jnp.take_along_axis(x, i[:, None], axis=1),
            "scatter": jnp.zeros_like(x).at[:, i].add(1.0),
            "set": x.at[index % x.shape[0]].set(0.0),
            "max": x.at[i % x.shape[0]].max(x[::-1]),
            "dynamic": lax.dynamic_slice(x, (index, jnp.int32(1)), (1, 3)),
            "update": lax.dynamic_update_slice(x, x[:1, :2] * 2, (index, index)),
            "argmax": jnp.argmax(x, axis=1),
            "searched": jnp.searchsorted(jnp.sort(x[0]), x[1]),
            "one-hot": jax.nn.one_hot(i, 5),
            "cumulative": jnp.cumsum(x, axis=0),
        }

    return spmd(body, (P("x"), P("x")), P("x"))(x, i)


@program(X4, args=lambda s: (normal(8, 3, 10), normal(4, 3, 3), normal(8, 6, 6, 2)))
def convolutions_and_transforms(spmd, x, kernel, image):
    def body(x, kernel, image):
        convolved = lax.conv_general_dilated(x, kernel, (1,), "SAME")
        pooled = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        spectrum = jnp.fft.rfft(x, axis=-1)
        back = jnp.fft.irfft(lax.psum(spectrum, "x"), axis=-1)
        gradient = jax.grad(lambda k: lax.conv_general_dilated(x, k, (2,), "VALID").sum())(kernel)
        return convolved, pooled, spectrum, back, lax.psum(vary(gradient, ["x"]), "x")

    outs = (P("x"), P("x"), P("x"), P(), P())
    return spmd(body, (P("x"), P(), P("x")), outs)(x, kernel, image)


@program(X4, args=lambda s: (normal(8, 3), integers(8, 3), booleans(8, 3)))
def elementwise_of_every_dtype(spmd, x, i, b):
    def body(x, i, b):
        half = x.astype(jnp.bfloat16)
        return {
            "where": jnp.where(b, x, lax.psum(x, "x")),
            "bits": lax.population_count(i) ^ (i << 2),
            "logic": jnp.logical_or(b, i > lax.pmax(i, "x") - 3).all(1),
            "bfloat16": half * 2 + lax.pmean(half, "x"),
            "complex": lax.complex(x, x * 2) * lax.psum(lax.complex(x, x), "x"),
            "cast": (x * 3).astype("int8"),
            "reduced": [x.max(1), x.prod(1), b.any(1), i.min(1), x.std(1)],
            "nan": jnp.log(x),
            "special": jax.scipy.special.erf(x) + jax.nn.softmax(x),
        }

    return spmd(body, P("x"), P("x"))(x, i, b)


@program(XY, args=lambda s: (normal(8, 6), normal(6, 4), normal(2, 4)))
def contractions(spmd, x, w, v):
    def body(x, w, v):
        shares = jnp.einsum("bi,io,ko->bk", x, w, v)
        precise = lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type="float32")
        return lax.psum(shares, "x"), jnp.einsum("bi,bj->ij", x, x)[None], precise

    return spmd(body, (P("x"), P(), P()), (P(), P("x"), P("x")))(x, w, v)


@program(X3, args=lambda s: (normal(6, 4, 2), normal(6, 4, 2)))
def attention(spmd, q, k):
    def body(q, k):
        keys = lax.all_gather(k, "x", axis=1, tiled=True)
        scores = jnp.einsum("bqd,bkd->bqk", q, keys)
        mask = jnp.arange(keys.shape[1]) <= 4 * lax.axis_index("x") + jnp.arange(4)[:, None]
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        return jnp.einsum("bqk,bkd->bqd", weights, keys), lax.pmean(weights, "x")

    return spmd(body, (P("x"), P("x")), (P("x"), P()))(q, k)

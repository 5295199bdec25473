"""A cast of what is the same on every mesh loses the same there, and excuses nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

from tests.support import check, normal

MESH = {"data": [1, 2, 4]}
FEW = ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "bfloat16"]


def through(dtype, x):
    return x.astype(dtype).astype(jnp.float32)


def masked_loss(dtype, right, cast=through):
    """A mean over what a mask leaves; of means, if it is wrong."""

    def f(x, w, mask, *, mesh):
        def body(x, w, mask):
            x, w = cast(dtype, x), cast(dtype, w)
            losses = ((x @ w) ** 2).mean(-1) * mask
            if right:
                return lax.psum(losses.sum(), "data") / lax.psum(mask.sum(), "data")
            return lax.pmean(losses.sum() / mask.sum(), "data")

        specs = P("data"), P(), P("data")
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, w, mask)

    return f


def data():
    mask = (np.arange(16) % 5 != 1).astype(np.float32)
    mask[12:15] = 0
    return normal(16, 8, seed=0), normal(8, 4, seed=1), jnp.asarray(mask)


def scaled(dtype, x):
    return (x * 3).astype(dtype).astype(jnp.float32) / 3


def in_a_loop(dtype, x):
    return lax.scan(lambda i, row: (i, through(dtype, row)), 0, x)[1]


def sent(dtype, x):
    """Each device casts its own rows before they are sent to the others and back."""
    everything = lax.all_gather(x.astype(dtype), "data", tiled=True)
    own = lax.dynamic_slice_in_dim(everything, lax.axis_index("data") * len(x), len(x))
    return own.astype(jnp.float32)


CASTS = [through, scaled, in_a_loop, sent]


@pytest.mark.parametrize(
    ("dtype", "cast"), [*zip(FEW, CASTS, strict=True), *zip(FEW, reversed(CASTS), strict=True)]
)
def test_a_cast_of_arguments_excuses_nothing(dtype, cast):
    dtype = jnp.dtype(dtype)
    assert check(masked_loss(dtype, True, cast), *data(), mesh=MESH)
    verdict = check(masked_loss(dtype, False, cast), *data(), mesh=MESH)
    assert set(verdict.wrong_on) >= {"{data: 4}"}


@pytest.mark.parametrize("dtype", FEW)
def test_what_differs_between_meshes_before_the_cast_rounds_otherwise(dtype):
    """A third of a number, a largest of a part, a share of a sum: all are cast as they are there,
    and so is what is cast where there are others to send it to."""
    dtype = jnp.dtype(dtype)

    def by_size(x, *, mesh):
        def body(x):
            count = lax.axis_size("data")
            return lax.psum((x.sum() / count).astype(dtype).astype(jnp.float32) * count, "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    def divided(x, *, mesh):
        def body(x):
            count = lax.axis_size("data")
            return through(dtype, x / count) * count

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def by_largest(x, *, mesh):
        def body(x):
            most = jnp.abs(x).max()
            return through(dtype, x / most) * most

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def for_others(x, *, mesh):
        def body(x):
            return through(dtype, x) if lax.axis_size("data") > 1 else x

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    programs = [divided, for_others, by_largest]
    if dtype != jnp.dtype("float4_e2m1fn"):  # which ends at 6
        programs.append(by_size)
    for program in programs:
        verdict = check(program, normal(12, 4, seed=0), mesh={"data": [1, 2, 3, 6]})
        assert verdict, str(verdict)


def test_a_reference_that_does_not_cast():
    """What is lost in the cast is no mistake beside a reference that loses nothing."""

    def reference(x, w, mask):
        return (((x @ w) ** 2).mean(-1) * mask).sum() / mask.sum()

    assert check(masked_loss(jnp.bfloat16, True), *data(), mesh=MESH, reference=reference)

"""Windows that slide over split dimensions, groups of features, batches of matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

import shardwise as sw

NUMBERS = ("NWC", "WIO", "NWC")
SPACE, FEATURES, BATCH = P(None, "m"), P(None, None, "m"), P("m")


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "float32")


def conv(stride, padding="VALID", **more):
    def body(x, k):
        given = {"dimension_numbers": NUMBERS, **more}
        if "feature_group_count" in more:
            given["feature_group_count"] = x.shape[-1] // k.shape[1]
        return lax.conv_general_dilated(x, k, (stride,), padding, **given)

    return body


def pool(size, stride, padding="VALID"):
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, size, 1), (1, stride, 1), padding)


PROVED = {
    "kernel of size 1": (conv(1), [(2, 32, 8), (1, 8, 6)], (SPACE, P()), SPACE),
    "patches": (conv(4), [(2, 32, 8), (4, 8, 6)], (SPACE, P()), SPACE),
    "dilated": (conv(4, rhs_dilation=(3,)), [(2, 32, 8), (2, 8, 6)], (SPACE, P()), SPACE),
    "each channel": (
        conv(1, "SAME", feature_group_count=0),
        [(2, 32, 8), (3, 1, 8)],
        (FEATURES, FEATURES),
        FEATURES,
    ),
    "pairs of channels": (
        conv(1, "SAME", feature_group_count=0),
        [(2, 32, 16), (3, 2, 8)],
        (FEATURES, FEATURES),
        FEATURES,
    ),
    "pooled": (pool(2, 2), [(2, 32, 8)], (SPACE,), SPACE),
    "pooled with gaps": (pool(2, 4), [(2, 32, 8)], (SPACE,), SPACE),
    "solved": (jnp.linalg.solve, [(8, 3, 3), (8, 3, 2)], (BATCH, BATCH), BATCH),
    "decomposed": (lax.linalg.cholesky, [(8, 3, 3)], (BATCH,), BATCH),
}


def program(name):
    body, shapes, specs, out = PROVED[name]

    def f(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out)(*args)

    return f, shapes


@pytest.mark.parametrize("name", PROVED)
def test_proved_and_the_same_numbers(name):
    f, shapes = program(name)
    assert sw.prove(f, *(shape(*sizes) for sizes in shapes), mesh=sw.mesh(m=4))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=sizes).astype(np.float32) for sizes in shapes]
    if name == "decomposed":
        args[0] = args[0] @ args[0].swapaxes(1, 2) + 3 * np.eye(3, dtype=np.float32)
    one, four = (sw.simulate(f, mesh=sw.mesh(m=n))(*args) for n in (1, 4))
    np.testing.assert_allclose(one, four, rtol=1e-4, atol=1e-5)


CROSSING = {
    "a kernel of size 3": (conv(1, "SAME"), [(2, 32, 8), (3, 8, 6)], (SPACE, P())),
    "pooled beyond a part": (pool(3, 2, "SAME"), [(2, 32, 8)], (SPACE,)),
    "one kernel for the channels of each device": (
        conv(1, "SAME", feature_group_count=0),
        [(2, 32, 8), (3, 1, 2)],
        (FEATURES, P()),
    ),
}


@pytest.mark.parametrize("name", CROSSING)
def test_what_crosses_the_parts_is_not_proved(name):
    body, shapes, specs = CROSSING[name]
    last = FEATURES if specs[0] == FEATURES else SPACE

    def f(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=last)(*args)

    def plain(*args):
        return (
            body(*args) if name != "one kernel for the channels of each device" else _tiled(*args)
        )

    proof = sw.prove(f, *(shape(*sizes) for sizes in shapes), mesh=sw.mesh(m=4), reference=plain)
    assert not proof


def _tiled(x, k):
    """The channels of the whole in another order than each device has them."""
    wide = jnp.repeat(k, 4, axis=2)
    return lax.conv_general_dilated(
        x, wide, (1,), "SAME", dimension_numbers=NUMBERS, feature_group_count=8
    )

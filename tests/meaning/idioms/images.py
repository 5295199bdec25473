"""Images split along a spatial dimension, or their channels."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import normal

from . import harder, production

SPACE = {"space": 4}
ROWS = P(None, "space")
IMAGE = normal(2, 16, 8, 6)
LAYOUT = ("NHWC", "HWIO", "NHWC")


def conv(x, w, strides=(1, 1), padding="SAME", groups=1):
    return lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=LAYOUT, feature_group_count=groups
    )


def halo(x):
    """The rows with one more at each end, zeros beyond the image."""
    size = lax.axis_size("space")
    above = lax.ppermute(x[:, -1:], "space", [(i, i + 1) for i in range(size - 1)])
    below = lax.ppermute(x[:, :1], "space", [(i + 1, i) for i in range(size - 1)])
    return jnp.concatenate([above, x, below], 1)


@production(
    SPACE, (P("space"), P(), P()), P(), normal(8, 8, 8, 3), normal(3, 3, 3, 4), normal(4, 5)
)
def convolutional_network_over_a_split_batch(x, w, out):
    def loss(w, out):
        h = jax.nn.relu(conv(x, w))
        h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return lax.pmean(jnp.mean(jnp.sin(h.mean((1, 2)) @ out)), "space")

    return jax.grad(loss, (0, 1))(w, out)


@harder(SPACE, (ROWS, P()), ROWS, IMAGE, normal(1, 1, 6, 5))
def pointwise_convolution_of_split_rows(x, w):
    return conv(x, w)


@harder(SPACE, (ROWS, P()), ROWS, IMAGE, normal(2, 2, 1, 6))
def aligned_depthwise_convolution_of_split_rows(x, w):
    return conv(x, w, (2, 2), "VALID", groups=6)


@harder(
    SPACE, (ROWS, P()), ROWS, IMAGE, normal(3, 3, 1, 6), reference=lambda x, w: conv(x, w, groups=6)
)
def depthwise_convolution_with_halo(x, w):
    return conv(halo(x), w, padding=((0, 0), (1, 1)), groups=6)


@harder(
    SPACE,
    (P(None, None, None, "space"), P(None, None, None, "space")),
    P(None, None, None, "space"),
    normal(2, 8, 8, 8),
    normal(3, 3, 1, 8),
    reference=lambda x, w: conv(x, w, groups=8),
)
def depthwise_convolution_of_split_channels(x, w):
    return conv(x, w, groups=x.shape[-1])


@harder(
    SPACE,
    (ROWS, P(), P()),
    ROWS,
    IMAGE,
    normal(3, 3, 1, 6),
    normal(1, 1, 6, 5),
    reference=lambda x, d, p: conv(jax.nn.relu(conv(x, d, groups=6)), p),
)
def separable_convolution_with_halo(x, depth, point):
    return conv(jax.nn.relu(conv(halo(x), depth, padding=((0, 0), (1, 1)), groups=6)), point)


@harder(SPACE, (ROWS, P()), ROWS, IMAGE, normal(3, 3, 6, 5), reference=conv)
def convolution_with_halo(x, w):
    return conv(halo(x), w, padding=((0, 0), (1, 1)))


@harder(SPACE, (ROWS, P()), ROWS, IMAGE, normal(4, 4, 6, 5))
def patches_of_split_rows(x, w):
    return conv(x, w, (4, 4), "VALID")


@harder(SPACE, ROWS, ROWS, IMAGE)
def aligned_largest_of_windows(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@harder(SPACE, ROWS, ROWS, IMAGE)
def gradient_of_aligned_largest(x):
    def f(x):
        top = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return jnp.sum(jnp.sin(top))

    return jax.grad(f)(x)


@harder(SPACE, ROWS, ROWS, IMAGE)
def aligned_mean_of_windows(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 4, 2, 1), (1, 4, 2, 1), "VALID") / 8


@harder(SPACE, ROWS, ROWS, IMAGE, reference=lambda x: x.reshape(2, 8, 2, 4, 2, 6).max((2, 4)))
def largest_of_windows_by_reshape(x):
    return x.reshape(2, x.shape[1] // 2, 2, 4, 2, 6).max((2, 4))


@harder(
    SPACE,
    (P(None, None, None, "space"), P(None, None, "space")),
    P(),
    normal(2, 8, 8, 8),
    normal(3, 3, 8, 5),
)
def convolution_of_split_input_channels(x, w):
    return lax.psum(conv(x, w), "space")


@harder(SPACE, (ROWS, P()), P(), IMAGE, normal(6, 5))
def global_mean_of_split_rows(x, w):
    return lax.pmean(jax.nn.relu(x).mean((1, 2)), "space") @ w


@harder(SPACE, P(None, None, None, "space"), P(None, None, None, "space"), normal(2, 8, 8, 16))
def group_norm_of_split_groups(x):
    groups = x.reshape(*x.shape[:3], -1, 2)
    mean = groups.mean((1, 2, 4), keepdims=True)
    variance = groups.var((1, 2, 4), keepdims=True)
    return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)


@harder(SPACE, (ROWS, P()), P(), IMAGE, normal(3, 3, 6, 5))
def gradient_of_a_convolution_with_halo(x, w):
    def loss(w):
        h = conv(halo(x), w, padding=((0, 0), (1, 1)))
        return lax.psum(jnp.sum(jnp.sin(h)), "space")

    return jax.grad(loss)(w)


@harder(SPACE, ROWS, ROWS, IMAGE, reference=lambda x: jnp.repeat(jnp.repeat(x, 2, 1), 2, 2))
def nearest_neighbours_upsampled(x):
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)

"""One training step of a convolutional network, in every form the benchmarks compare.

Blocks of two convolutions with a residual connection, each half as high and wide as the one before,
in float32.

    python benchmarks/convnet.py                    # memory, time and compile time
    python benchmarks/convnet.py --size large       # for an accelerator
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from forms import Forms, compare
from jax import lax

Params = dict[str, Any]
CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the images and the network are."""

    side: int
    channels: tuple[int, ...]
    batch: int


SIZES = {
    "tiny": Size(8, (8, 16), 64),
    "small": Size(32, (16, 32, 64), 512),
    "large": Size(64, (64, 128, 256, 512), 2048),
}


def make(size: Size) -> tuple[Params, tuple[jax.Array, jax.Array]]:
    """The params, and a batch of images with their classes."""
    keys = iter(jax.random.split(jax.random.key(0), 64))

    def weights(*shape: int) -> jax.Array:
        fan_in = shape[0] * shape[1] * shape[2]
        return jax.random.normal(next(keys), shape) * (2 / fan_in) ** 0.5

    blocks, before = [], 3
    for width in size.channels:
        shapes = {
            "first": (3, 3, before, width),
            "second": (3, 3, width, width),
            "past": (1, 1, before, width),
        }
        blocks.append({name: weights(*shape) for name, shape in shapes.items()})
        before = width
    head = jax.random.normal(next(keys), (before, CLASSES)) * 0.1
    images = jax.random.normal(next(keys), (size.batch, size.side, size.side, 3))
    classes = jax.random.randint(next(keys), (size.batch,), 0, CLASSES)
    return {"blocks": blocks, "head": head}, (images, classes)


def convolve(x: jax.Array, weights: jax.Array, stride: int = 1) -> jax.Array:
    order = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, weights, (stride, stride), "SAME", dimension_numbers=order)


def mean_loss(params: Params, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The mean cross entropy of the class."""
    x, classes = batch
    for block in params["blocks"]:
        inner = jax.nn.relu(convolve(x, block["first"], 2))
        x = jax.nn.relu(convolve(inner, block["second"]) + convolve(x, block["past"], 2))
    logits = jnp.mean(x, axis=(1, 2)) @ params["head"]
    chosen = jnp.take_along_axis(logits, classes[:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


if __name__ == "__main__":
    compare("A convolutional network", Forms(mean_loss), SIZES, make)

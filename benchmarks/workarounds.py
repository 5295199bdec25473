"""Measure the CPU slowdowns of XLA that the engine works around.

    python benchmarks/workarounds.py            # from the root of the repository

A scan that writes rows of bfloat16 against one that writes rows of float32: some versions convert
the whole stack for every row (`loop.py` adds rows to a total instead). A product in bfloat16
with a transpose after it against the product alone: some versions make a slower operation of the
two (`later.py` sums the products of all devices before it transposes). Gradients of a
convolution's weights in a loop, as autodiff writes them and with their dimensions in the order that
XLA brings them into where there is no loop; and convolutions of each channel by itself in that
order and in another one (`_jax/convolutions.py` chooses, for every loop). The sum of a stack of
long rows against the addition of the rows (`_jax/sums.py` adds where it has to).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import report
from jax import lax

ROWS, SHAPE, TIMES = 48, (512, 128), 64


def writes(dtype: Any) -> Callable[[Any], Any]:
    def turn(x: Any, _: None) -> tuple[Any, Any]:
        return x * 1.0001, x.astype(dtype)

    return lambda x: lax.scan(turn, x, None, length=ROWS)


def products(transposed: bool) -> Callable[[Any], Any]:
    """Gradients of weights, added up: inputs of 4 x 64 rows, 128 wide, cotangents 512 wide."""

    def turn(total: Any, scale: Any) -> tuple[Any, None]:
        x = jnp.full((4, 64, SHAPE[1]), scale)
        out = jnp.tanh(jnp.full((4, 64, SHAPE[0]), scale))
        made = lax.dot_general(out, x, (((0, 1), (0, 1)), ((), ())))
        return total + (made.T if transposed else made).astype(jnp.float32), None

    def run(x: Any) -> Any:
        scales = jnp.arange(TIMES, dtype=jnp.bfloat16) * x[0, 0].astype(jnp.bfloat16)
        return lax.scan(turn, jnp.zeros(SHAPE[::-1] if transposed else SHAPE), scales)[0]

    return run


def convolutions(ordered: bool) -> Callable[[Any], Any]:
    """Gradients of 3 x 3 weights from 32 to 32 channels, added up: 16 images of 16 x 16."""
    channels = 32

    def turn(total: Any, scale: Any) -> tuple[Any, None]:
        x = jnp.sin(jnp.full((16, 16, 16, channels), scale))  # batch, height, width, channels
        order = ("CHWN", "IHWO", "HWNC")
        if ordered:
            left, right = jnp.transpose(x, (3, 1, 2, 0)), jnp.transpose(x, (1, 2, 0, 3))
            made = lax.conv_general_dilated(
                left, right, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            made = jnp.transpose(made, (1, 2, 0, 3))
        else:
            made = lax.conv_general_dilated(x, x, (1, 1), ((1, 1), (1, 1)), dimension_numbers=order)
        return total + made, None

    def run(x: Any) -> Any:
        scales = jnp.arange(TIMES, dtype=jnp.float32) * x[0, 0]
        return lax.scan(turn, jnp.zeros((3, 3, channels, channels)), scales)[0]

    return run


def by_channel(ordered: bool) -> Callable[[Any], Any]:
    """3 x 3 weights for each of 32 channels: 8 images of 32 x 32."""
    channels = 32
    shape = (3, 3, 1, channels) if ordered else (1, 3, 3, channels)
    order = ("NHWC", "HWIO" if ordered else "IHWO", "NHWC")

    def turn(x: Any, _: None) -> tuple[Any, None]:
        made = lax.conv_general_dilated(
            x, jnp.full(shape, 0.1), (1, 1), "SAME",
            dimension_numbers=order, feature_group_count=channels,
        )  # fmt: skip
        return made, None

    def run(x: Any) -> Any:
        return lax.scan(turn, jnp.full((8, 32, 32, channels), x[0, 0]), None, length=TIMES)[0]

    return run


def sums(added: bool) -> Callable[[Any], Any]:
    """Stacks of eight rows, each of 65,536 numbers."""

    def run(x: Any) -> Any:
        stack = jnp.stack([x + i for i in range(8)])

        def turn(total: Any, _: None) -> tuple[Any, None]:
            rows, total = lax.optimization_barrier((stack, total))
            if not added:
                return total + jnp.sum(rows, axis=0), None
            for row in rows:
                total = total + row
            return total, None

        return lax.scan(turn, x, None, length=TIMES)[0]

    return run


def milliseconds(f: Callable[[Any], Any]) -> float:
    """The shortest of a few runs."""
    compiled, x = jax.jit(f), jnp.ones(SHAPE)
    times = []
    for _ in range(8):
        began = time.perf_counter()
        jax.block_until_ready(compiled(x))
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def main() -> None:
    pairs = {
        f"{ROWS} rows written, bfloat16 / float32": (writes(jnp.bfloat16), writes(jnp.float32)),
        f"{TIMES} products, transposed / not": (products(True), products(False)),
        f"{TIMES} convolutions, as written / in order": (convolutions(False), convolutions(True)),
        f"{TIMES} convolutions by channel, in order / not": (by_channel(True), by_channel(False)),
        f"{TIMES} stacks of 8 long rows, summed / added": (sums(False), sums(True)),
    }
    rows = []
    for name, pair in pairs.items():
        one, other = map(milliseconds, pair)
        rows.append([name, f"{one:.1f} ms", f"{other:.1f} ms", report.ratio(one / other)])
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + "\n")
    print(report.table(["what", "one", "other", "ratio"], rows))


if __name__ == "__main__":
    main()

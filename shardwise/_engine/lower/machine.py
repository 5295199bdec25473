"""The speed of this machine, measured once in a process, in some tenths of a second."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import os
import time
from typing import Any

import jax
import jax.numpy as jnp

from .cost import Machine, Rates


def room() -> float:
    """Return the bytes that shards may take: half of a device's memory, a quarter of the host's."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] / 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 4


def on_host() -> bool:
    """Return whether programs run on the host's CPU."""
    return jax.local_devices()[0].platform == "cpu"


def machine() -> Machine:
    """Return the speed of this machine."""
    return _measured(jax.local_devices()[0].device_kind)


@functools.cache
def _measured(kind: str) -> Machine:
    # In another thread: the caller may be tracing, and would trace the measurement.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(_measure).result()


def _measure() -> Machine:
    host = on_host()
    widths, counts = ((128, 320), (1 << 19, 1 << 24)) if host else ((8192,), (1 << 28,))

    def products(dtype: Any) -> Rates:
        rates = itertools.accumulate((_rate(width, dtype) for width in widths), max)
        return tuple(zip((2.0 * width**3 for width in widths), rates, strict=True))

    transfers = tuple((4.0 * count, _moved(count, max(counts) // count)) for count in counts)
    return Machine(
        products=products(jnp.float32),
        half_products=products(jnp.bfloat16),
        bytes=transfers,
        fresh=_fresh(max(counts)) if host else 0.0,
        retained=RETAINED,
        start=2e-6 if host else 4e-6,
        fill=0.0 if host else 1e-5,
    )


RETAINED = 32 * 2**20
"""Bytes above which the host's allocator returns freed memory, so that pages are mapped anew."""


def _moved(count: int, times: int) -> float:
    """Measure bytes per second that are read and written in place, as a loop accumulates."""
    add = jax.jit(lambda x: jax.lax.fori_loop(0, times, lambda _, x: x + 1, x), donate_argnums=0)
    x = jnp.ones(count, jnp.float32)
    return times * 2.0 * x.nbytes / _fastest(add, x)


def _fresh(count: int) -> float:
    """Measure how much longer a byte of a new array takes than one of a donated array."""
    x = jnp.ones(count, jnp.float32)
    new = _fastest(jax.jit(lambda x: x + 1), x)
    old = _fastest(jax.jit(lambda x: x + 1, donate_argnums=0), x + 0)
    return max(0.0, new - old) / x.nbytes


def _rate(width: int, dtype: Any) -> float:
    """Measure the FLOP per second of square matrix products, one after another in a program."""
    times = max(1, (320 // width) ** 3)
    power = jax.jit(lambda x, y: jax.lax.fori_loop(0, times, lambda _, x: x @ y, x))
    x = jnp.eye(width, dtype=dtype)
    calls = 5 if width > 1024 else 20  # short measurements are noisy
    return times * 2.0 * width**3 / _fastest(power, x, x, calls=calls)


def _fastest(f: Any, first: Any, *more: Any, calls: int = 5) -> float:
    """Return the shortest of a few durations, without the first; calls take the previous result."""
    times = []
    for _ in range(calls):
        began = time.perf_counter()
        first = jax.block_until_ready(f(first, *more))
        times.append(time.perf_counter() - began)
    return min(times[1:])

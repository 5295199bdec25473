"""The machine that programs run on."""

from __future__ import annotations

import os

import jax


def room() -> float:
    """Return the bytes that shards may take: half of a device's memory, a quarter of the host's."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] / 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 4


def on_host() -> bool:
    """Return whether programs run on the host's CPU."""
    return jax.local_devices()[0].platform == "cpu"

"""Helpers of the commands that run cases: import path, devices, console."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._base.errors import ShardwiseError

if TYPE_CHECKING:
    from rich.console import Console


def start_devices(count: int) -> None:
    """Start JAX with `count` virtual CPU devices; JAX reads the flags only at startup."""
    flag = "--xla_force_host_platform_device_count"
    others = re.sub(rf"{flag}=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} {flag}={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.pop("JAX_NUM_CPU_DEVICES", None)  # it has precedence over the flag
    import jax

    if jax.device_count() != count:
        raise ShardwiseError(
            f"JAX had started before, with {jax.device_count()} devices.",
            where=f"--devices {count}",
            rule="The number of devices is fixed when JAX starts.",
            remedy="run shardwise in a process of its own.",
        )


@contextlib.contextmanager
def path_as_it_was() -> Iterator[None]:
    """Restore `sys.path` after all cases have run: importing them adds their folders."""
    path = sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = path


def console() -> Console:
    """Return a console that uses colour only on a terminal and never wraps lines."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)

"""Eight virtual CPU devices, asked for before JAX starts. Nothing here imports JAX or NumPy."""

from __future__ import annotations

import os

COUNT = 8

PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds=1800"
"""XLA ends the process where a device waits longer for others in a collective, 40 s unless told
otherwise: a machine that does much else may need them."""


def request_devices(count: int = COUNT) -> None:
    """Ask XLA for `count` virtual CPU devices, keeping what `XLA_FLAGS` says already."""
    flag = f"--xla_force_host_platform_device_count={count}"
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()
    if "xla_cpu_collective_call_terminate_timeout_seconds" not in flags:
        os.environ["XLA_FLAGS"] += f" {PATIENCE}"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # NumPy's threads wait for work by asking for it: a tenth of a second in every process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

"""Import this before JAX: it sets eight virtual CPU devices, unless `--gpu` is passed."""

from __future__ import annotations

import os
import sys

GPU = "--gpu" in sys.argv
if not GPU:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"

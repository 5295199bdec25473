"""The number of this process, from the variables of launchers and schedulers, without JAX."""

from __future__ import annotations

import os

_NUMBERS = ("SHARDWISE_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def process_number() -> int:
    """Return the number of this process; 0 if it is the only one."""
    texts = (os.environ.get(name, "") for name in _NUMBERS)
    return next((int(text) for text in texts if text.isdigit()), 0)

"""A process under its launcher: its number, and its reports, which it sends through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

_NUMBERS = ("SHARDWISE_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def process_number() -> int:
    """Return the number that a launcher or scheduler gave this process; 0 without one."""
    texts = (os.environ.get(name, "") for name in _NUMBERS)
    return next((int(text) for text in texts if text.isdigit()), 0)


def has_launcher() -> bool:
    """Return whether there is a launcher."""
    return os.environ.get("SHARDWISE_REPORT", "").isdigit()


def send(say: str, **fields: Any) -> None:
    """Send an event, as `events` names it, if there is a launcher."""
    if has_launcher():
        message = json.dumps({"say": say, **fields}) + "\n"
        with contextlib.suppress(OSError):
            os.write(int(os.environ["SHARDWISE_REPORT"]), message.encode())

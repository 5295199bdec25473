"""Reports of a process to its launcher, through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any


def has_launcher() -> bool:
    """Return whether there is a launcher."""
    return os.environ.get("SHARDWISE_REPORT", "").isdigit()


def send(**message: Any) -> None:
    """Send a report, if there is a launcher; an empty one means that something was stored."""
    if has_launcher():
        with contextlib.suppress(OSError):
            os.write(int(os.environ["SHARDWISE_REPORT"]), (json.dumps(message) + "\n").encode())

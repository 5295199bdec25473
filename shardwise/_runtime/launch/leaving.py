"""Processes that have reached the end of their script while others have not.

JAX makes them wait for all others. That may be fine: one process may still write files. But it may
also wait in a collective for a process that has ended, which the launcher cannot observe. So a
message reports which process waits for which, and the process to blame when JAX gives up.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from ..._base.error_texts import BARRIER_FAILED
from ..._base.errors import explain_error
from .events import Ended, Exited
from .failure import Evidence, Failure, is_known

NOTICE = 30.0
"""Seconds between the first end and the first message."""

AGAIN = 4.0
"""The factor by which the time to the next message grows."""


class Leavers:
    """The processes of one attempt that have ended their script.

    Args:
        total: The number of processes.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._hosts: dict[int, str] = {}
        self._began, self._notice = 0.0, NOTICE

    def add(self, event: Ended) -> None:
        """Record that a process has ended its script."""
        if not self._hosts:
            self._began = time.monotonic()
        self._hosts[event.process] = event.host

    def notice(self, alive: set[int]) -> str | None:
        """Return a message about the processes that wait, if one is due."""
        elapsed = time.monotonic() - self._began
        waiting, running = alive & self._hosts.keys(), alive - self._hosts.keys()
        if not waiting or not running or elapsed < self._notice:
            return None
        self._notice *= AGAIN
        return still_running(waiting, running, elapsed)

    def blamed(self, evidence: list[Evidence]) -> Failure | None:
        """Return the failure if JAX gave up waiting at the end of the script; None otherwise."""
        late = set(range(self._total)) - self._hosts.keys()
        gave_up = any(isinstance(e, Exited) and BARRIER_FAILED in e.words for e in evidence)
        if not (gave_up and late and self._hosts) or is_known(evidence):
            return None
        first, host = next(iter(self._hosts.items()))
        message = explain_error(
            f"{_named(late)} did not come to the end of the script as well before JAX gave up.",
            rule="All processes run the same steps and collectives, and end at about one time.",
            remedy="make their loops equally long; what one of them does alone at the end, such as "
            "writing files, may take an hour in scripts that begin with sw.connect().",
        )
        reason = "it ended its script while others ran on, and JAX waited for them in vain"
        return Failure(f"process {first} on {host}", reason, message, 1)


def still_running(ended: Collection[int], running: Collection[int], seconds: float) -> str:
    """Return a message about the processes that have ended and those that have not."""
    return (
        f"{_named(ended)} came to the end of the script up to {seconds:.0f} s ago, "
        f"{_named(running)} did not yet; the job ends with the last of them"
    )


def _named(processes: Collection[int]) -> str:
    numbers = sorted(processes)
    rest = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"process {', '.join(map(str, numbers[:8]))}{rest}"

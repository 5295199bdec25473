"""A small process that outlives the launcher, to end the processes that a killed launcher leaves.

It reads the process groups from a pipe that only the launcher has open. When the pipe closes,
however the launcher ended, it kills the remaining groups.
"""

from __future__ import annotations

import contextlib
import os
import signal


class Keeper:
    """The keeper process; the launcher creates it before it starts any threads."""

    def __init__(self) -> None:
        reading, self._pipe = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                _keep(reading)
            finally:
                os._exit(0)
        os.close(reading)

    def add(self, group: int) -> None:
        """Add a process group to end with the launcher."""
        self._write(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Remove a process group that has ended."""
        self._write(f"-{group}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the keeper was killed
            os.write(self._pipe, text.encode())

    def close(self) -> None:
        """Close the pipe: the keeper ends the remaining groups."""
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _keep(reading: int) -> None:
    os.setsid()  # Ctrl-C is not meant for this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    os.closerange(3, reading)
    os.closerange(reading + 1, 1 << 16)
    groups: set[int] = set()
    with os.fdopen(reading) as lines:
        for line in lines:
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)

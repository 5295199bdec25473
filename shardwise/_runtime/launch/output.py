"""The output of the processes: shown with a prefix, or written to one file per process."""

from __future__ import annotations

import collections
import os
import re
import sys
import threading
from pathlib import Path
from typing import IO, Any

from ..._base.error_texts import GLOO_CONNECTED

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95)
_TAIL = 200
"""The number of lines of standard error to keep per process: the error may be far from the end,
before the stacks of its threads."""
_WIDTH = 2000
"""The maximum number of characters of a line in a failure report."""
_FRAME = "    @  "
"""The start of a frame in a native stack trace: dozens follow an error and would displace it."""
_GREETING = re.compile(GLOO_CONNECTED.encode())


def _is_greeting(line: bytes) -> bool:
    """Return whether this is Gloo's message that all ranks are connected, which is of no use."""
    match = _GREETING.fullmatch(line)
    return match is not None and match[1] == match[2]


class Output:
    """The destination of the lines of all processes.

    Args:
        log_dir: A folder for a file per process; None to show the lines with a prefix.
        total: The number of processes, for the width of the prefix.
    """

    def __init__(self, log_dir: Path | None, total: int) -> None:
        self._log_dir, self._width = log_dir, len(str(max(total - 1, 0)))
        self._lock = threading.Lock()
        self._files: dict[int, IO[bytes]] = {}
        self.tails: dict[int, collections.deque[str]] = {}
        self.interrupted = False
        """Whether a process printed a line after the launcher's last one."""

    def say(self, text: str) -> None:
        """Print a message of the launcher."""
        with self._lock:
            self.interrupted = False
            print(f"shardwise launch: {text}", file=sys.stderr, flush=True)

    def open(self, process: int, attempt: int) -> None:
        """Prepare for the output of a process."""
        self.tails[process] = collections.deque(maxlen=_TAIL)
        if self._log_dir is not None:
            folder = self._log_dir / f"attempt-{attempt}"
            folder.mkdir(parents=True, exist_ok=True)
            self._files[process] = (folder / f"process-{process}.log").open("ab", buffering=0)

    def line(self, process: int, line: bytes, error: bool) -> None:
        """Show or store a line of a process; Gloo's connection messages are not shown."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if error and not text.startswith(_FRAME):
            self.tails[process].append(text[:_WIDTH])
        file = self._files.get(process)
        if file is not None:
            file.write(line if line.endswith(b"\n") else line + b"\n")
            return
        if not error and _is_greeting(line):
            return
        stream = sys.stderr if error else sys.stdout
        with self._lock:
            self.interrupted = True
            print(f"{self._prefix(process, stream)} {text}", file=stream, flush=True)

    def tail(self, process: int) -> str:
        """Return the last lines of standard error, without the frames of native stack traces."""
        return "\n".join(self.tails.get(process, ()))

    def close(self, process: int) -> None:
        """Close the file of a process, after its last line."""
        file = self._files.pop(process, None)
        if file is not None:
            file.close()

    def _prefix(self, process: int, stream: Any) -> str:
        prefix = f"[{process:>{self._width}}]"
        if not stream.isatty() or os.environ.get("NO_COLOR"):
            return prefix
        return f"\x1b[{_COLOURS[process % len(_COLOURS)]}m{prefix}\x1b[0m"

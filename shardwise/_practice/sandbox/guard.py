"""What a solution may not do, refused in words.

An audit hook cannot be taken off again from Python. It keeps a solution from starting processes,
sending signals, talking to the network, writing outside its own folder, calling C, and reading the
judge's own files. It is no wall against somebody who means harm: the documentation says so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROCESSES = (
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.exec",
    "os.startfile",
    "subprocess.Popen",
    "pty.spawn",
)
SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")
NETWORK = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "urllib.Request")
C = ("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function")
CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

WORDS = {
    **dict.fromkeys(PROCESSES, "starts another process"),
    **dict.fromkeys(SIGNALS, "sends a signal"),
    **dict.fromkeys(NETWORK, "uses the network"),
    **dict.fromkeys(C, "calls C directly"),
}


class Refused(PermissionError):
    """A solution did something that no exercise needs."""


def keep(folder: Path, secret: Sequence[Path]) -> None:
    """From now on refuse what no exercise needs."""
    inside, hidden = str(folder), tuple(os.path.join(path, "") for path in secret)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in WORDS:
            raise Refused(f"the solution {WORDS[event]} ({event}); no exercise needs that.")
        if event == "open":
            path, mode, flags = args
            if isinstance(path, str | bytes | os.PathLike):
                _opened(os.fspath(path), mode, flags)
        elif event in CHANGES and args and isinstance(args[0], str | bytes | os.PathLike):
            _outside(os.fspath(args[0]), "changes")

    def _opened(path: str | bytes, mode: Any, flags: Any) -> None:
        text = os.path.realpath(os.fsdecode(path))
        writes = any(c in str(mode or "") for c in "wax+") or bool(int(flags or 0) & WRITES)
        if writes and text != os.devnull:
            _outside(text, "writes to")
        if os.path.join(text, "").startswith(hidden) and not text.endswith(".pyc"):
            raise Refused("the solution reads the judge's own files; no exercise needs that.")

    def _outside(path: str | bytes, verb: str) -> None:
        text = os.path.realpath(os.fsdecode(path))
        if text != inside and not text.startswith(inside + os.sep):
            raise Refused(f"the solution {verb} a file outside its folder; no exercise needs that.")

    sys.addaudithook(hook)

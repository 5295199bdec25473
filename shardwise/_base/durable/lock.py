"""One run at a time: a lock that the kernel lets go of when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import Any

from ..errors import ShardwiseError, explain_error

try:
    import fcntl
except ImportError:  # Windows has no such locks; two runs at a time are not noticed there
    fcntl: Any = None

_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A file that one process holds; a context manager.

    The file says who holds it. It is removed at the end; after a kill it stays, held by nobody.

    Args:
        path: The file.
        what: What is locked, for the message, such as `the checkpoints in runs/a`.
        doing: What its holder does there, such as `trains`.
        remedy: What the second process can do.
    """

    def __init__(self, path: Path, what: str, doing: str, remedy: str) -> None:
        self.path, self._what, self._doing, self._remedy = path, what, doing, remedy
        self._handle: int | None = None

    def __enter__(self) -> Lock:
        """Take it, or raise with the name of the holder."""
        while self._handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._take(handle)
            except BaseException:
                os.close(handle)
                raise
            if _is_at(handle, self.path):
                self._handle = handle
            else:  # its holder removed it between our opening and our taking it
                os.close(handle)
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(_myself()).encode(), 0)
        _HELD.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            if _is_at(self._handle, self.path):
                with contextlib.suppress(OSError):
                    self.path.unlink()
            self.drop()

    def drop(self) -> None:
        """Close the file without a word to the lock: a child that was forked holds nothing."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None
        _HELD.discard(self)

    def _take(self, handle: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ShardwiseError(
                explain_error(
                    f"{_described(os.pread(handle, 4096, 0))} {self._doing} there.",
                    where=self._what,
                    rule="One process writes there at a time.",
                    remedy=self._remedy,
                )
            ) from error


def _drop_all() -> None:
    for lock in list(_HELD):
        lock.drop()


# A worker that was forked shares the open file: it would hold the lock after its parent's end.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)


def _is_at(handle: int, path: Path) -> bool:
    try:
        on_disk, opened = path.stat(), os.fstat(handle)
    except OSError:
        return False
    return (on_disk.st_dev, on_disk.st_ino) == (opened.st_dev, opened.st_ino)


def _myself() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv)[:200],
    }


def _described(content: bytes) -> str:
    try:
        record = json.loads(content)
        return (
            f"process {record['process']} on {record['host']} ({record['command'] or 'python'}, "
            f"since {record['since']})"
        )
    except (ValueError, KeyError, TypeError):
        return "another process"


def holder(path: Path) -> str:
    """Return which process of this machine holds a POSIX lock on a file, on Linux."""
    try:
        inode = str(path.stat().st_ino)
        with open("/proc/locks", encoding="ascii") as file:
            rows = [line.replace("->", "").split() for line in file]
        number = next(r[4] for r in rows if r[1] == "POSIX" and r[5].endswith(f":{inode}"))
        command = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, StopIteration, IndexError, UnicodeDecodeError):
        return "another process"
    return f"process {number} ({command.strip()[:200]})"

"""A lock file that the kernel releases when its process ends, however it ends.

The `filelock` package does not replace this: it truncates the file when it tries to acquire it,
which would erase the description of the holder, and forked children keep its lock.
"""

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

from ..errors import ShardwiseError

try:
    import fcntl
except ImportError:  # Windows has no such locks; concurrent runs are not detected there
    fcntl: Any = None

_ACQUIRED: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A context manager that locks a file for one process.

    The file describes the process that holds the lock. It is deleted at the end. If the process is
    killed, the file stays and is unlocked.

    Args:
        path: The file.
        resource: The locked resource, for the message, such as `the checkpoints in runs/a`.
        activity: What the holder does there, such as `trains`.
        remedy: What a second process can do.
    """

    def __init__(self, path: Path, resource: str, activity: str, remedy: str) -> None:
        self.path, self._resource, self._activity = path, resource, activity
        self._remedy = remedy
        self._handle: int | None = None

    def __enter__(self) -> Lock:
        """Acquire the lock, or raise an error that names the holder."""
        while self._handle is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._acquire(handle)
            except BaseException:
                os.close(handle)
                raise
            if _is_at(handle, self.path):
                self._handle = handle
            else:  # its holder deleted it after we opened it
                os.close(handle)
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(_this_process()).encode(), 0)
        _ACQUIRED.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            if _is_at(self._handle, self.path):
                with contextlib.suppress(OSError):
                    self.path.unlink()
            self.drop()

    def drop(self) -> None:
        """Close the file without unlocking it, as a forked child must."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None
        _ACQUIRED.discard(self)

    def _acquire(self, handle: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ShardwiseError(
                f"{_description(os.pread(handle, 4096, 0))} {self._activity} there.",
                where=self._resource,
                rule="One process writes there at a time.",
                remedy=self._remedy,
            ) from error


def _drop_all() -> None:
    for lock in list(_ACQUIRED):
        lock.drop()


# A forked worker shares the open file, and would keep the lock after its parent has ended.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)


def _is_at(handle: int, path: Path) -> bool:
    try:
        on_disk, opened = path.stat(), os.fstat(handle)
    except OSError:
        return False
    return (on_disk.st_dev, on_disk.st_ino) == (opened.st_dev, opened.st_ino)


def _this_process() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv)[:200],
    }


def _description(content: bytes) -> str:
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

"""Atomic writes, and detection of files that were deleted or replaced."""

from __future__ import annotations

import glob
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ..errors import ShardwiseError, writing

STALE = 600
"""Seconds without a change after which a temporary file is deleted."""


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: on failure the old content stays.

    A pipe or a device such as `/dev/stdout`, and a file in a folder that is not writable, are
    written to directly instead of being replaced. The target of a symbolic link is replaced, not
    the link.

    Raises:
        ShardwiseError: It cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        target = path.resolve()
        if _is_replaceable(path.absolute(), target):
            write_whole(target, data)
        else:
            path.write_bytes(data)


def write_as(path: Path, formats: Mapping[str, Callable[[], str]], of: str, names: str) -> Path:
    """Write the format that the suffix of a file requests, and return the path.

    Args:
        path: The file.
        formats: What makes the content, by suffix.
        of: What is written: `a report`.
        names: The names that there could be, for the error.

    Raises:
        ShardwiseError: The suffix is not among them, or the file cannot be written.
    """
    suffix = path.suffix
    if suffix not in formats:
        raise ShardwiseError(
            f"{suffix!r} is not a format of {of}" if suffix else "the name has no suffix",
            where=str(path),
            rule="The suffix says what is written.",
            remedy=names,
        )
    write_file(path, formats[suffix]())
    return path


def _is_replaceable(path: Path, target: Path) -> bool:
    """Return whether a file can be replaced: it is regular, writable, and not our own output, to
    which `/dev/stdout` may be redirected."""
    if path.parts[1:2] in (("dev",), ("proc",)) or not os.access(target.parent, os.W_OK):
        return False
    if not target.exists():
        return True
    return target.is_file() and os.access(target, os.W_OK) and not _is_output(target)


def _is_output(file: Path) -> bool:
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream), file.stat()):
                return True
    return False


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new.

    The name of the temporary file is random, and an existing file of that name is never opened.
    Temporary files that killed processes left behind are deleted by a later write, once they are
    too old to belong to a concurrent one.
    """
    _delete_stale(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    mode = _mode(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if mode is not None:  # the umask may have cleared some bits
                os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _delete_stale(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):
            if time.time() - leftover.lstat().st_mtime > STALE:
                leftover.unlink()


def _mode(path: Path) -> int | None:
    """Return the permissions of a file; None if it does not exist."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    return None


def unused(path: Path) -> Path:
    """Return the path, with a number appended if such a file exists."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}{number}")
    return candidate


class Identity:
    """The device and inode of a path when a run began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._original = _identity(path)

    def lost(self) -> str:
        """Return how the file was lost, as the end of a sentence; "" if it was not."""
        identity = _identity(self.path)
        if identity == self._original:
            return ""
        return "was deleted or moved" if identity is None else "was replaced by another"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

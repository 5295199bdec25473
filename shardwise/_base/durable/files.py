"""Files that are there whole or not at all, and that are noticed when they go away."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from ..errors import writing

LEFT = 600
"""After so many seconds without a change, a file on its way is nobody's any more."""


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that the user names: whole, or what was there stays; a pipe as it comes.

    What has no content to keep, as `/dev/stdout`, a link to it or a pipe, is written to and not
    replaced; so is a file in a folder that takes no new ones. A link stays a link.

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


def _is_replaceable(path: Path, target: Path) -> bool:
    """Not what is open already under another name: `/dev/stdout` may lead to a file.

    Nor a file that may not be written to, of which writing to it says so.
    """
    if path.parts[1:2] in (("dev",), ("proc",)) or not os.access(target.parent, os.W_OK):
        return False
    if not target.exists():
        return True
    return target.is_file() and os.access(target, os.W_OK) and not _is_printed_to(target)


def _is_printed_to(file: Path) -> bool:
    for stream in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(stream), file.stat()):
                return True
    return False


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one go: whoever reads it sees the old content or the new.

    The name used on the way cannot be guessed, and nothing that has it already is opened. One that
    a killed process left behind goes with a write some minutes later; a younger one may be of
    somebody who is writing now.
    """
    _sweep(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    mode = _rights(path)
    created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    handle = os.open(temporary, created, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if mode is not None:  # which the umask may have taken from
                os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _sweep(path: Path) -> None:
    for leftover in path.parent.glob(f".{_escaped(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):
            if time.time() - leftover.lstat().st_mtime > LEFT:
                leftover.unlink()


def _rights(path: Path) -> int | None:
    """Who may do what with a file that is there."""
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    return None


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def unused(path: Path) -> Path:
    """Return the path, with a number appended if such a file exists."""
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}{number}")
    return candidate


class Identity:
    """Which file a path meant when a run began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = _identity(path)

    def lost(self) -> str:
        """What became of it, as the end of a sentence; empty while it is still there."""
        identity = _identity(self.path)
        if identity == self._known:
            return ""
        return "was deleted or moved" if identity is None else "was replaced by another"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

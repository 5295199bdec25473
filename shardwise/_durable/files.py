"""Files that are there whole or not at all, and that are noticed when they go away."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .._errors import writing


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file that the user names: whole, or what was there stays; a pipe as it comes.

    What has no content to keep, as `/dev/stdout` or a pipe, is written to and not replaced; so is a
    file in a folder that takes no new ones. A link stays a link.

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
    """Not what is open already under another name: `/dev/stdout` may lead to a file."""
    if path.parts[1:2] in (("dev",), ("proc",)):
        return False
    regular = target.is_file() or not target.exists()
    return regular and os.access(target.parent, os.W_OK)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one go: whoever reads it sees the old content or the new.

    The name used on the way cannot be guessed, and nothing that has it already is opened. One that
    a killed process left behind goes with the next write.
    """
    prefix = f".{path.name}."
    for left in path.parent.glob(f"{_escaped(prefix)}*.tmp"):
        with suppress(OSError):
            left.unlink()
    handle, beside = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            # mkstemp lets nobody else read; what is there already says who may.
            os.fchmod(file.fileno(), _mode(path))
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _mode(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def unused(path: Path) -> Path:
    """The path, or with a number behind it if there is such a file already."""
    found, number = path, 1
    while os.path.lexists(found):
        number += 1
        found = path.with_name(f"{path.name}{number}")
    return found


class Identity:
    """Which file a path meant when a run began."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = _identity(path)

    def lost(self) -> str:
        """What became of it, as the end of a sentence; empty while it is still there."""
        now = _identity(self.path)
        if now == self._known:
            return ""
        return "was deleted or moved" if now is None else "was replaced by another"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

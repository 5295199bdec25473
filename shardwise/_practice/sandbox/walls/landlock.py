"""Which files a process may read or write, enforced by Landlock (Linux 5.13 and later)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from .syscalls import call

_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_FILE = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_TRUNCATE = 1 << 14
_READING = _EXECUTE | _READ | _LIST
_WRITING = _READING | _WRITE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_FILE | _TRUNCATE
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_HANDLED = {1: 13, 2: 14, 3: 15, 4: 15}
"""The number of file rights in each version of the interface; 16 from the fifth on."""


def version() -> int:
    """Return the version of the kernel's interface; 0 where there is none."""
    try:
        return call("landlock_create_ruleset", None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


class Ruleset:
    """The files that may be read, listed and written; all others are denied once it is applied."""

    def __init__(self) -> None:
        abi = version()
        self.rights = (1 << _HANDLED.get(abi, 16)) - 1
        fields = [self.rights]
        if abi >= 4:
            fields.append(3)  # TCP: bind, connect
        if abi >= 6:
            fields.append(3)  # abstract sockets and signals stay inside
        attributes = struct.pack(f"={len(fields)}Q", *fields)
        self.file = call(
            "landlock_create_ruleset",
            ctypes.create_string_buffer(attributes, len(attributes)),
            ctypes.c_size_t(len(attributes)),
            ctypes.c_uint(0),
        )

    def allow_reading(self, paths: Iterable[str]) -> None:
        """Allow reading files, and everything below folders."""
        for path in paths:
            self._add(path, _READING)

    def allow_listing(self, paths: Iterable[str]) -> None:
        """Allow listing folders and those below them, but not reading their files."""
        for path in paths:
            self._add(path, _LIST)

    def allow_writing(self, path: str) -> None:
        """Allow changing a file, or everything below a folder."""
        self._add(path, _WRITING)

    def _add(self, path: str, rights: int) -> None:
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                if not stat.S_ISDIR(os.fstat(file).st_mode):
                    rights &= _OF_FILES
                rule = struct.pack("=Qi", rights & self.rights, file)
                call(
                    "landlock_add_rule",
                    ctypes.c_int(self.file),
                    ctypes.c_int(1),
                    ctypes.create_string_buffer(rule, len(rule)),
                    ctypes.c_uint(0),
                )
            finally:
                os.close(file)

    def apply(self) -> None:
        """Restrict this thread and the threads it starts. This cannot be undone."""
        call("landlock_restrict_self", ctypes.c_int(self.file), ctypes.c_uint(0))

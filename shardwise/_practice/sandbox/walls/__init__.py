"""Isolation enforced by the kernel: what a solution can read, call and consume.

view         the files it can read: Python, the installed packages, and not the exercises
namespaces   no other process, no network, no other file: the kernel's own calls, or bubblewrap
landlock     the same files once more, for each process by itself
seccomp      the system calls that computing needs, and no others
syscalls     numbers of system calls
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Collection

from . import landlock, seccomp
from .syscalls import call, prctl
from .view import WORK, ReadablePaths


@dataclasses.dataclass(frozen=True)
class Walls:
    """The walls in effect around a solution."""

    namespaces: str = ""
    """How the namespaces were created: `unshare`, `bubblewrap`, or empty if there are none."""
    landlock: int = 0
    """The version of the kernel's interface; 0 for none."""
    seccomp: bool = False

    @property
    def closed(self) -> bool:
        """Whether files, processes and the network are all inaccessible."""
        return self.seccomp and bool(self.namespaces or self.landlock)


ALL = ("unshare", "bubblewrap", "landlock", "seccomp")
"""The names of the walls, for the option to leave them out."""


class Confinement:
    """The walls, prepared once and applied to each process that runs a solution."""

    def __init__(
        self, view: ReadablePaths, base: str, namespaces: str, without: Collection[str] = ()
    ):
        version = 0 if "landlock" in without else landlock.version()
        self.walls = Walls(namespaces, version, "seccomp" not in without and seccomp.supported())
        # Only a mount of our own limits the size and the number of files.
        self.writable = namespaces == "unshare"
        self.rules: landlock.Ruleset | None = None
        if self.walls.landlock:
            self.rules = landlock.Ruleset()
            read, around = view.parts()
            self.rules.allow_reading(read)
            self.rules.allow_listing(around)
            self.rules.allow_writing("/dev/null")
            self.rules.allow_reading(["/dev/zero", "/dev/random", "/dev/urandom"])
            if self.writable:
                self.rules.allow_writing(WORK)
            else:
                self.rules.allow_reading([base])

    def apply(self) -> None:
        """Apply the walls to this process, which has one thread. This cannot be undone."""
        _drop_capabilities()
        prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
        if self.rules is not None:
            self.rules.apply()
            os.close(self.rules.file)
        if self.walls.seccomp:
            seccomp.apply(creating=self.writable or self.rules is not None)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def words(walls: Walls) -> str:
    """Return a sentence about the walls in effect and the missing ones."""
    found = {
        "user namespaces": walls.namespaces and f"namespaces ({walls.namespaces})",
        "Landlock": walls.landlock and f"Landlock (version {walls.landlock})",
        "seccomp": walls.seccomp and "seccomp",
    }
    names = [str(name) for name in found.values() if name]
    missing = [name for name, there in found.items() if not there]
    return f"{', '.join(names) or 'nothing'}; missing: {', '.join(missing) or 'nothing'}"

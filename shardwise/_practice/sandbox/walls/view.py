"""The files that a solution can read: Python, the installed packages, a few system files."""

from __future__ import annotations

import dataclasses
import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

OWN = Path(__file__).parents[3]
EXERCISES = OWN / "_practice" / "exercises"

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store")
SYSTEM = ("/etc/ld.so.cache", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
WORK = "/judged"
"""The working folder of solutions in a mount namespace: a small file system in memory."""


@dataclasses.dataclass(frozen=True)
class ReadablePaths:
    """Paths that can be read, and the folders among them that are hidden."""

    readable: tuple[str, ...]
    hidden: tuple[str, ...]

    @classmethod
    def of_this_python(cls, hidden: tuple[str, ...] = ()) -> ReadablePaths:
        """Return what Python and its packages need, without the exercises and `hidden`."""
        paths = [sys.base_prefix, sys.prefix, str(OWN), *LIBRARIES, *SYSTEM]
        paths += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
        paths += [os.path.dirname(os.path.realpath(sys.executable)), *site.getsitepackages()]
        paths += [path for path in sys.path if _is_installed(path)]
        whole = {os.path.realpath(path) for path in paths} | {os.path.abspath(p) for p in paths}
        there = [path for path in whole if os.path.exists(path) and path != "/"]
        secret = {os.path.realpath(path) for path in (str(EXERCISES), *hidden)}
        return cls(tuple(_outermost(there)), tuple(_outermost(list(secret))))

    def covers(self, path: str) -> bool:
        """Return whether a path can be read."""
        real = os.path.realpath(path)
        return _below(real, self.readable) and not _below(real, self.hidden)

    @property
    def masked(self) -> list[str]:
        """The hidden folders that would be readable otherwise."""
        return [path for path in self.hidden if _below(path, self.readable) and os.path.isdir(path)]

    def parts(self) -> tuple[list[str], list[str]]:
        """Return the readable paths without the hidden ones, and the folders around those."""
        read: list[str] = []
        around: list[str] = []
        for path in self.readable:
            self._split(path, read, around)
        return read, around

    def _split(self, path: str, read: list[str], around: list[str]) -> None:
        real = os.path.realpath(path)
        if _below(real, self.hidden):
            return
        if not any(_below(folder, (real,)) for folder in self.hidden):
            read.append(path)
            return
        around.append(path)
        for child in _children(path):
            self._split(child, read, around)


def _is_installed(path: str) -> bool:
    """Return whether a folder of `sys.path` is one that packages are installed into."""
    folder = Path(path or ".")
    return folder.is_dir() and (
        folder.name in ("site-packages", "dist-packages") or any(folder.glob("*.dist-info"))
    )


def _outermost(paths: list[str]) -> Iterator[str]:
    """Yield the paths that are below no other."""
    for path in sorted(set(paths)):
        if not any(path != other and _below(path, (other,)) for other in paths):
            yield path


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _children(path: str) -> list[str]:
    try:
        return [os.path.join(path, name) for name in sorted(os.listdir(path))]
    except OSError:
        return []

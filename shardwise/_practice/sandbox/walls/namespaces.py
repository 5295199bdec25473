"""Namespaces: a process without other processes, network and files except those of a view.

The kernel's own calls build it: new user, mount, pid, network, ipc and uts namespaces, a root of
bind mounts, and nothing of the old one. Some distributions allow that to chosen programs only;
there `bubblewrap` builds it, if it is installed. Neither needs root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys

from .syscalls import call, prctl
from .view import DEVICES, WORK, ReadablePaths

_NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS."""
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 2, 4, 4096, 16384, 1 << 18
_DETACH, _RECURSIVE, _HERE = 2, 0x8000, -100
_SET_READ_ONLY_NOSUID = 1 | 2


def bubblewrap(view: ReadablePaths, size: int) -> list[str]:
    """Return the start of a command line that runs inside bubblewrap; empty if it cannot."""
    program = shutil.which("bwrap")
    if program is None:
        return []
    command = [program, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL"]
    for path in view.readable:
        command += ["--ro-bind", path, path]
    for path in view.masked:
        command += ["--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        command += ["--dev-bind", path, path]
    command += ["--size", str(size), "--tmpfs", WORK, "--remount-ro", "/", "--chdir", WORK]
    return command if _works(command) else []


def _works(command: list[str]) -> bool:
    """Return whether Python starts inside: many containers and distributions forbid it."""
    try:
        ended = subprocess.run(
            [*command, sys.executable, "-I", "-S", "-c", ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def enter(view: ReadablePaths, base: str, size: int) -> None:
    """Enter new namespaces; `base` is an empty folder for the new root.

    Returns in a new process, the first of its pid namespace. The calling process waits for it and
    ends with it. Raises OSError, in the calling process, where the kernel does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    ready, finished = os.pipe()
    child = os.fork()  # a failure must leave this process unchanged
    if child:
        os.close(finished)
        if not os.read(ready, 1):
            os.waitpid(child, 0)
            os.close(ready)
            raise OSError("namespaces cannot be made here")
        os._exit(_ending(os.waitpid(child, 0)[1]))
    try:
        call("unshare", ctypes.c_int(_NAMESPACES))
        _map_user(uid, gid)
        prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG: end with the process that waits
        first = os.fork()
        if first:
            os.close(finished)
            os._exit(_ending(os.waitpid(first, 0)[1]))
        prctl(1, int(signal.SIGKILL))
        _build_root(view, base, size)
        os.write(finished, b".")
    except OSError:
        os._exit(1)
    os.close(ready)
    os.close(finished)


def _ending(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _map_user(uid: int, gid: int) -> None:
    """Map only the current user and group into the namespace."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _build_root(view: ReadablePaths, base: str, size: int) -> None:
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
    for path in (*view.readable, *DEVICES):
        _mount(path, _place(path, base), None, _BIND | _REC)
    for path in view.masked:
        _mount("tmpfs", base + path, "tmpfs", _NOSUID | _NODEV, "mode=0755,size=4k")
    os.mkdir(base + WORK)
    attributes = (ctypes.c_uint64 * 4)(_SET_READ_ONLY_NOSUID, 0, 0, 0)
    call(
        "mount_setattr",
        ctypes.c_int(_HERE),
        base.encode(),
        ctypes.c_uint(_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    options = f"mode=0755,size={size},nr_inodes=400"
    _mount("tmpfs", base + WORK, "tmpfs", _NOSUID | _NODEV, options)
    os.chdir(base)
    call("pivot_root", b".", b".")
    call("umount2", b".", ctypes.c_int(_DETACH))
    os.chdir(WORK)


def _place(path: str, base: str) -> str:
    """Create the folder or empty file that a path is mounted on."""
    place = base + path
    if os.path.isdir(path):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w"):
            pass
    return place


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    text = None if data is None else data.encode()
    call("mount", *encoded, ctypes.c_ulong(flags), text)

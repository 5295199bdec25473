"""A seccomp filter that allows only the system calls that computing needs.

`syscalls.COMPUTING` names what is allowed; everything else fails with EPERM. That leaves out
sockets, other processes (`clone` makes threads only), signals to others, `execve`, mounts,
`ptrace`, shared memory, and changes of owner, mode or times. Because no second process can be made,
the limits of the one process are limits of the whole solution.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable, Mapping

from .syscalls import COMPUTING, number, prctl

CLONE_THREAD = 0x10000
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 1030, 1031, 1032)
"""Duplicate, flags, locks, the size of a pipe. F_SETOWN is missing: it sends signals."""
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
PRCTL = (3, 15, 16, 0x53564D41)
"""PR_GET_DUMPABLE, the name of a thread, the name of a mapping."""

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "arm64": 0xC00000B7}
_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38


def supported() -> bool:
    """Return whether this machine's system calls are listed and its kernel has filters."""
    if platform.machine() not in _ARCH:
        return False
    try:
        prctl(21)  # PR_GET_SECCOMP
    except OSError:
        return False
    return True


def apply(creating: bool = True) -> None:
    """Restrict this thread and the threads it starts to these system calls. This cannot be undone.

    Without `creating`, no file or folder can be made, for where nothing else limits their number.
    """
    code = _program(creating)
    instructions = ctypes.create_string_buffer(code, len(code))

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = FilterProgram(len(code) // 8, ctypes.addressof(instructions))
    prctl(22, 2, ctypes.byref(program))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _program(creating: bool) -> bytes:
    lines = [
        _line(_LOAD, 4),  # the architecture
        _line(_EQUAL, _ARCH[platform.machine()], 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, 0),  # the number of the call
    ]
    if not creating:
        for name, argument in (("open", 1), ("openat", 2)):
            flags = [_line(_LOAD, 16 + 8 * argument), _line(_SET, os.O_CREAT, 0, 1)]
            denied = _line(_RETURN, _ERRNO | _EPERM)
            lines += _rule(name, [*flags, denied, _line(_RETURN, _ALLOW)])
    for name in COMPUTING:
        if creating or not name.startswith("mkdir"):
            lines += _rule(name, [_line(_RETURN, _ALLOW)])
    for name, (argument, values) in _arguments().items():
        lines += _rule(name, _one_of(argument, values))
    threads = [_line(_LOAD, 16), _line(_SET, CLONE_THREAD, 0, 1), _line(_RETURN, _ALLOW)]
    lines += _rule("clone", [*threads, _line(_RETURN, _ERRNO | _EPERM)])
    # A filter cannot read the flags of clone3, which are in memory: libc falls back to clone.
    lines += _rule("clone3", [_line(_RETURN, _ERRNO | _ENOSYS)])
    lines.append(_line(_RETURN, _ERRNO | _EPERM))
    return b"".join(lines)


def _arguments() -> Mapping[str, tuple[int, Iterable[int]]]:
    """Return the calls that are allowed only with some values of an argument: index and values."""
    return {
        "fcntl": (1, FCNTL),
        "ioctl": (1, IOCTL),
        "prctl": (0, PRCTL),
        "prlimit64": (0, (0,)),  # of this process; limits can only be lowered
        "tgkill": (0, (os.getpid(),)),  # abort() signals itself
    }


def _one_of(argument: int, values: Iterable[int]) -> list[bytes]:
    lines = [_line(_LOAD, 16 + 8 * argument)]
    for value in values:
        lines += [_line(_EQUAL, value, 0, 1), _line(_RETURN, _ALLOW)]
    return [*lines, _line(_RETURN, _ERRNO | _EPERM)]


def _rule(name: str, then: list[bytes]) -> list[bytes]:
    """Return what to do if the call is `name`; nothing where this machine has no such call."""
    which = number(name)
    return [] if which is None else [_line(_EQUAL, which, 0, len(then)), *then]


def _line(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value)

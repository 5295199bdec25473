"""Running launchers from tests, always under a time limit and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..patience import HANGS

LIMIT = HANGS

PATIENT = f"""
from shardwise._runtime.launch import entry, wire
entry.SILENCE = wire.SILENCE = {HANGS}
from shardwise._cli import main
main()
"""
"""A launcher that takes no other for gone because the machine is slow."""


def script(folder: Path, text: str, name: str = "script.py") -> Path:
    """A script in a folder."""
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@contextlib.contextmanager
def launched(*arguments: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher under way; killed at the end if it is still there, and its keeper cleans up."""
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, "launch", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def launch(*arguments: object, limit: float = LIMIT, **env: str) -> tuple[int, str, str]:
    """Launch to the end: exit code, output, errors. Longer than the limit is a failure."""
    with launched(*arguments, **env) as process:
        out, err = process.communicate(timeout=limit)
        return process.returncode, out, err


def wait_for(what: Callable[[], object], limit: float = LIMIT) -> object:
    """What a function gives as soon as it is true."""
    until = time.monotonic() + limit
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not reaped yet does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


KILL = signal.SIGKILL

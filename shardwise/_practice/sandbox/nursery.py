"""A process that has imported JAX and forks a child for each run.

Importing JAX and Flax takes seconds, a fork takes none; and no run sees anything of another. JAX
is imported here but not started: its threads, which a fork would lose, begin in the child.

The judge speaks to it over a socket: a line of JSON for each run, with the pipe for the answer
beside it. It answers with a line for each run that has ended, by itself or killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

HEAVY = (
    "flax.linen",
    "flax.nnx",
    "optax",
    "jax.experimental.shard_map",
    "shardwise._check",
    "shardwise._inspect",
    "shardwise._practice.sandbox.child",
    "shardwise._practice.sandbox.hooks",
)
"""What every run needs. None of it may start JAX."""

BEAT = 0.05
"""Seconds between two looks at the children."""


class Nursery:
    """Forks children, reaps them, and kills those that take too long."""

    def __init__(self, talk: socket.socket):
        self.talk = talk
        self.running: dict[int, dict[str, Any]] = {}
        self.rest = b""
        self.pipes: list[int] = []

    def serve(self) -> None:
        """Until the judge hangs up."""
        while True:
            ready, _, _ = select.select([self.talk], [], [], BEAT if self.running else 60.0)
            if ready and not self._hear():
                break
            self._look()
        for pid in list(self.running):
            _kill(pid)

    def _hear(self) -> bool:
        got, pipes, _, _ = socket.recv_fds(self.talk, 1 << 20, 16)
        self.pipes += pipes
        self.rest += got
        while b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            asked = json.loads(line)
            if asked.get("stop") is not None:
                self._stop(asked["stop"])
            else:
                self._start(asked, self.pipes.pop(0))
        return bool(got)

    def _start(self, asked: dict[str, Any], pipe: int) -> None:
        pid = os.fork()
        if pid == 0:
            self.talk.close()
            from .child import run

            run(asked, pipe)
            os._exit(0)
        os.close(pipe)
        self.running[pid] = {
            "run": asked["run"],
            "end": time.monotonic() + float(asked["seconds"]),
            "late": False,
        }

    def _stop(self, run: int) -> None:
        for pid, known in self.running.items():
            if known["run"] == run:
                _kill(pid)

    def _look(self) -> None:
        now = time.monotonic()
        for pid, known in self.running.items():
            if now > known["end"] and not known["late"]:
                known["late"] = True
                _kill(pid)
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            known = self.running.pop(pid, None)
            _kill(pid)
            if known is not None:
                self._tell(known, status, used)
        if not self.running:
            _orphans()

    def _tell(self, known: dict[str, Any], status: int, used: Any) -> None:
        said = {
            "run": known["run"],
            "late": known["late"],
            "code": os.waitstatus_to_exitcode(status),
            "cpu": round(used.ru_utime + used.ru_stime, 2),
            "memory": used.ru_maxrss * 1024,
        }
        with contextlib.suppress(OSError):
            self.talk.sendall(json.dumps(said).encode() + b"\n")


def _kill(pid: int) -> None:
    """A child and what it has started: it leads a process group of its own."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            send(pid, signal.SIGKILL)


def _orphans() -> None:
    """What the children left behind has become ours (we are a subreaper): end it."""
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            for pid in task.read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def main() -> None:
    """`python -m shardwise._practice.sandbox.nursery FD`."""
    talk = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the judge, which then hangs up
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    warnings.simplefilter("ignore")
    for name in HEAVY:
        importlib.import_module(name)
    talk.sendall(b'{"ready": true}\n')
    Nursery(talk).serve()


if __name__ == "__main__":
    main()

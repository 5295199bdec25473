"""A process that has imported JAX and forks a child for each run.

Importing JAX and Flax takes seconds, a fork is immediate, and the runs are independent. JAX is
imported here but not initialized: its threads, which a fork would lose, start in the child.

The judge sends a line of JSON for each run, with three open files: one that contains the run, and
pipes for the answer and the output. Only the child reads the run, since whatever the nursery reads
would be in the memory of later children. The nursery replies with a line for each run that ended or
was killed. It enters new namespaces before it imports anything; each child applies the other walls
to itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import time
import warnings
from typing import Any

from .walls import Confinement, namespaces
from .walls.view import WORK, ReadablePaths

HEAVY = (
    "flax.linen",
    "flax.nnx",
    "optax",
    "jax.experimental.shard_map",
    "shardwise._analysis.check",
    "shardwise._analysis.inspect",
    "shardwise._practice.sandbox.child",
    "shardwise._practice.sandbox.look",
    "shardwise._practice.sandbox.program",
)
"""The modules that every run needs. None of them may initialize JAX."""

BEAT = 0.05
"""Seconds between two checks of the children."""


class Nursery:
    """Forks children, reaps them, and kills those that take too long."""

    def __init__(self, talk: socket.socket, base: str, confinement: Confinement | None, proc: int):
        self.talk, self.base, self.confinement, self.proc = talk, base, confinement, proc
        self.running: dict[int, dict[str, Any]] = {}
        self.rest = b""
        self.files: list[int] = []

    def serve(self) -> None:
        """Serve until the judge closes the connection."""
        while True:
            ready, _, _ = select.select([self.talk], [], [], BEAT if self.running else 60.0)
            if ready and not self._hear():
                break
            self._look()
        for pid in list(self.running):
            _kill(pid)

    def _hear(self) -> bool:
        got = self._receive()
        while b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            order = json.loads(line)
            if "stop" in order:
                self._stop(order["stop"])
                continue
            files, self.files = self.files[:3], self.files[3:]
            self._start(order, *files)
        return got

    def _receive(self) -> bool:
        got, files, _, _ = socket.recv_fds(self.talk, 1 << 20, 16)
        self.files += files
        self.rest += got
        return bool(got)

    def _start(self, order: dict[str, Any], run: int, answer: int, printed: int) -> None:
        folder = os.path.join(self.base, str(order["run"]))
        os.mkdir(folder, 0o700)
        pid = _fork()
        if pid == 0:
            from .child import live

            with os.fdopen(run, "rb") as file:
                request = pickle.load(file)
            live(request, folder, (answer, printed), self.confinement, self.proc)
            os._exit(0)
        for file in (run, answer, printed):
            os.close(file)
        end = time.monotonic() + float(order["seconds"])
        self.running[pid] = {"run": order["run"], "folder": folder, "end": end, "late": False}

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
        while self.running:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            known = self.running.pop(pid, None)
            if known is not None:
                _kill(pid)
                shutil.rmtree(known["folder"], ignore_errors=True)
                self._report(known, status, used)
        if not self.running:
            _clear(self.base)

    def _report(self, known: dict[str, Any], status: int, used: Any) -> None:
        message = {
            "run": known["run"],
            "late": known["late"],
            "code": os.waitstatus_to_exitcode(status),
            "cpu": round(used.ru_utime + used.ru_stime, 2),
            "memory": used.ru_maxrss * 1024,
        }
        with contextlib.suppress(OSError):
            self.talk.sendall(json.dumps(message).encode() + b"\n")


def _fork() -> int:
    """Fork; retry for a moment while there are too many processes or threads."""
    for _ in range(50):
        with contextlib.suppress(BlockingIOError):
            return os.fork()
        time.sleep(0.1)
    return os.fork()


def _kill(pid: int) -> None:
    """Kill a child, and its process group unless a wall prevents it from starting processes."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            send(pid, signal.SIGKILL)


def _clear(folder: str) -> None:
    """Delete the files that ended runs have left in a folder."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


def _confine(settings: dict[str, Any]) -> tuple[str, Confinement | None]:
    """Enter new namespaces, if possible; return the folder of the runs and the other walls."""
    without, base = settings["without"], settings["base"]
    if sys.platform != "linux":
        return base, None
    view = ReadablePaths(tuple(settings["readable"]), tuple(settings["hidden"]))
    isolation = settings["namespaces"]
    if not isolation and "unshare" not in without:
        with contextlib.suppress(OSError):
            namespaces.enter(view, base, settings["disk"])
            isolation = "unshare"
    if not isolation and "bubblewrap" not in without:
        wrapped = namespaces.bubblewrap(view, settings["disk"])
        if wrapped:  # start again inside
            again = json.dumps({**settings, "namespaces": "bubblewrap"})
            command = [sys.executable, "-P", "-m", "shardwise._practice.sandbox.nursery"]
            os.execv(wrapped[0], [*wrapped, *command, sys.argv[1], again])
    base = WORK if isolation else base
    return base, Confinement(view, base, isolation, without)


def main() -> None:
    """Run `python -m shardwise._practice.sandbox.nursery FD SETTINGS`."""
    talk = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    base, confinement = _confine(settings)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C ends the judge, which closes the connection
    warnings.simplefilter("ignore")
    for name in HEAVY:
        importlib.import_module(name)
    walls = confinement.walls if confinement else None
    standing = {} if walls is None else vars(walls)
    talk.sendall(json.dumps({"walls": standing}).encode() + b"\n")
    Nursery(talk, base, confinement, settings["proc"]).serve()


if __name__ == "__main__":
    main()

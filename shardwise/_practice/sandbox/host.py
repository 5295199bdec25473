"""The judge's side of the sandbox: request runs, wait for answers, survive crashes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._base.errors import ShardwiseError, require
from . import wire
from .runs import Going, Limits, Ran, Stream
from .walls import ALL, Walls, landlock, seccomp, words
from .walls.view import ReadablePaths

STARTING = 120.0
"""The time limit in seconds for importing JAX."""

SPARE = 10.0
"""Seconds to wait after the limit of a run before the nursery is restarted."""

DISK = 16 << 20
"""The total size in bytes of the files that all runs of a solution may write, in memory."""

TASKS = 512
"""The number of threads that the user may have in addition to those at the start."""


class Sandbox:
    """A nursery, started when first needed, and restarted if a run brings it down."""

    def __init__(self, limits: Limits | None = None, without: Collection[str] = ()):
        self.limits = limits or Limits()
        self.without = tuple(without)
        """The walls to leave out."""
        self.walls = Walls()
        """The walls in effect; known once the nursery is ready."""
        self._hidden: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: socket.socket | None = None
        self._parts = contextlib.ExitStack()
        """The folder, the connection and the process of the nursery."""
        self._rest = b""
        self._number = 0
        self._ready = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def hide(self, folder: Path) -> None:
        """Hide a folder that solutions could read otherwise."""
        path = os.path.realpath(folder)
        if ReadablePaths.of_this_python(self._hidden).covers(path):
            self._hidden = (*self._hidden, path)
            self.close()

    def warning(self) -> str:
        """Return a sentence about the missing walls; empty if there are none."""
        if set(self.without) == set(ALL):
            return "Judging without walls: a solution can do whatever you can."
        expected = Walls(landlock=landlock.version(), seccomp=seccomp.supported())
        if not self.without and expected.closed:
            return ""  # known without waiting for the nursery
        self.start()
        self._wait_until_ready()
        if self.walls.closed:
            return ""
        return (
            f"This machine has no walls to judge behind (found: {words(self.walls)}). A solution "
            "can do whatever you can: judge only your own."
        )

    def require_walls(self) -> None:
        """Raise an error that names the missing walls, if the kernel does not provide them."""
        if set(self.without) == set(ALL) or not self.warning():
            return
        raise ShardwiseError(
            f"this machine cannot wall off what it judges (found: {words(self.walls)})",
            where="shardwise practice judge --all",
            rule="Files of other people are judged behind walls that the kernel enforces: "
            "seccomp (Linux on x86_64 or aarch64), and user namespaces or Landlock.",
            remedy="judge on a Linux machine that has them, or in a virtual machine; with "
            "--unsafe they are judged here, and each can do whatever you can.",
        )

    def start(self) -> None:
        """Start the nursery without waiting until it is ready."""
        if self._process is not None and self._process.poll() is None:
            return
        require("flax", "shardwise practice")
        self.close()
        with contextlib.ExitStack() as parts:
            base = tempfile.TemporaryDirectory(
                prefix="shardwise-practice-", ignore_cleanup_errors=True
            )
            parts.enter_context(base)
            view = ReadablePaths.of_this_python(self._hidden)
            our_end, child_end = socket.socketpair()
            parts.callback(our_end.close)
            proc = _open_proc()
            settings = {
                "without": self.without,
                "base": base.name,
                "readable": view.readable,
                "hidden": view.hidden,
                "namespaces": "",
                "disk": DISK,
                "proc": proc,
            }
            command = [sys.executable, "-P", "-m", "shardwise._practice.sandbox.nursery"]
            with child_end:
                self._process = subprocess.Popen(
                    [*command, str(child_end.fileno()), json.dumps(settings)],
                    pass_fds=[child_end.fileno(), *[proc] * (proc >= 0)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,
                )
            if proc >= 0:
                os.close(proc)
            parts.callback(_end, self._process)
            self._parts = parts.pop_all()
        self._talk, self._rest, self._ready = our_end, b"", False

    def close(self) -> None:
        """End the nursery and all its processes."""
        self._parts.close()
        self._process = self._talk = None

    def run(self, jobs: Sequence[dict[str, Any]], source: str, name: str) -> list[Ran]:
        """Run a file for each job, in parallel on the available processors.

        Jobs with the same number of devices share processes, so that JAX compiles less.
        """
        lanes = _processors()
        groups = _groups(jobs, lanes)
        ran = self._run([[jobs[i] for i in group] for group in groups], source, name, lanes)
        results: dict[int, Ran] = {}
        for group, parts in zip(groups, ran, strict=True):
            results |= dict(zip(group, parts, strict=True))
        return [results[index] for index in range(len(jobs))]

    def _run(
        self, jobs: Sequence[list[dict[str, Any]]], source: str, name: str, lanes: int
    ) -> list[list[Ran]]:
        self.start()
        self._wait_until_ready()
        waiting = list(enumerate(jobs))
        results: dict[int, list[Ran]] = {}
        going: dict[int, Going] = {}
        try:
            while waiting or going:
                while waiting and len(going) < lanes:
                    index, job = waiting.pop(0)
                    running = self._launch(index, job, source, name)
                    going[running.run] = running
                self._listen(going, results)
                if any(ran.late for parts in results.values() for ran in parts):
                    self._give_up(waiting, going, results)
        finally:
            for running in going.values():
                running.close()
        return [results[index] for index in range(len(jobs))]

    def _give_up(
        self, waiting: list[Any], going: dict[int, Going], results: dict[int, list[Ran]]
    ) -> None:
        """Stop the other runs of a file after one of them exceeded its time limit."""
        for index, jobs in waiting:
            results[index] = [Ran(skipped=True)] * len(jobs)
        waiting.clear()
        for running in going.values():
            if not running.skipped:
                self._stop(running)
            running.skipped = True

    def _stop(self, process: Going) -> None:
        if self._talk is not None:
            with contextlib.suppress(OSError):
                self._talk.sendall(json.dumps({"stop": process.run}).encode() + b"\n")

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + STARTING
        while not self._ready:
            line = self._line(end - time.monotonic())
            if line is None:
                self.close()
                raise ShardwiseError(
                    "the process that runs solutions does not start",
                    where="shardwise practice",
                    rule="It imports jax, flax and optax.",
                    remedy="see whether this works: python -c 'import jax, flax, optax'.",
                )
            if "walls" in line:
                self.walls, self._ready = Walls(**line["walls"]), True

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """Return the next message of the nursery; None if there is none or it has ended."""
        assert self._talk is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._talk], [], [], max(0.0, seconds))
            got = self._talk.recv(1 << 16) if ready else b""
            if not got:
                return None
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _launch(self, index: int, jobs: list[dict[str, Any]], source: str, name: str) -> Going:
        self.start()
        self._wait_until_ready()
        assert self._talk is not None
        self._number += 1
        run = {
            "name": name,
            "source": source,
            "jobs": jobs,
            "limits": {**dataclasses.asdict(self.limits), "tasks": _tasks() + TASKS},
        }
        answer, printed = os.pipe(), os.pipe()
        for reads, _ in (answer, printed):
            os.set_blocking(reads, False)
        order = {"run": self._number, "seconds": self.limits.seconds}
        try:
            with tempfile.TemporaryFile() as file:
                pickle.dump(run, file)
                file.seek(0)
                with contextlib.suppress(OSError):  # `_listen` detects a nursery that has ended
                    line = json.dumps(order).encode() + b"\n"
                    socket.send_fds(self._talk, [line], [file.fileno(), answer[1], printed[1]])
        finally:
            os.close(answer[1])
            os.close(printed[1])
        return Going(
            self._number,
            index,
            len(jobs),
            Stream(answer[0], wire.ANSWER),
            Stream(printed[0], self.limits.output),
        )

    def _listen(self, going: dict[int, Going], results: dict[int, list[Ran]]) -> None:
        """Read what has arrived, and finish the runs that have ended."""
        assert self._talk is not None
        streams = [
            stream for running in going.values() for stream in running.streams if stream.open
        ]
        ready, _, _ = select.select(
            [self._talk, *(running.file for running in streams)], [], [], 0.2
        )
        for running in going.values():
            for stream in running.streams:
                if stream.file in ready:
                    stream.read()
            if any(stream.full for stream in running.streams) and not running.stopped:
                running.stopped = True
                self._stop(running)
        lines = []
        if self._talk in ready or b"\n" in self._rest:
            while (line := self._line(0.0)) is not None:
                lines.append(line)
            ended = not lines
        else:
            ended = self._process is None or self._process.poll() is not None
        for line in lines:
            running = going.pop(int(line.get("run", -1)), None)
            if running is not None:
                results[running.index] = running.finish(line, self.limits)
        now = time.monotonic()
        stuck = any(now - running.began > self.limits.seconds + SPARE for running in going.values())
        if ended or stuck:
            # The nursery has ended or hangs, because of a run.
            self.close()
            for running in list(going.values()):
                results[running.index] = running.finish(
                    {"late": stuck, "code": -signal.SIGKILL}, self.limits
                )
            going.clear()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _open_proc() -> int:
    """Open /proc, where a process reads the size of its memory; return -1 if it is missing."""
    try:
        return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1


def _tasks() -> int:
    """Count the threads of this user: the kernel limits their total."""
    count = 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if status.stat().st_uid == os.getuid():
                count += len(os.listdir(status / "task"))
    return count


def _processors() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(4, available or 1))


def _groups(jobs: Sequence[Mapping[str, Any]], lanes: int) -> list[list[int]]:
    """Return the groups of jobs that share a process: with equal device counts, evenly sized."""
    by_devices: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        by_devices.setdefault(job["devices"], []).append(index)
    return [group[k::lanes] for group in by_devices.values() for k in range(min(lanes, len(group)))]


def _environment() -> dict[str, str]:
    """Return the environment of the nursery, which inherits nothing from the judge."""
    here = str(Path(__file__).parents[3])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    variables = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "LANG": "C.UTF-8",
        # A process with several threads cannot enter a user namespace, or fork safely.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        # Each thread would reserve its own 64 MiB of addresses, which the limit of memory counts.
        "MALLOC_ARENA_MAX": "1",
    }
    libraries = os.environ.get("LD_LIBRARY_PATH")
    return {**variables, "LD_LIBRARY_PATH": libraries} if libraries else variables

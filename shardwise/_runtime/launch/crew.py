"""The processes of this machine."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO, Any

from .events import Exited, Paused, from_message
from .handshake import VARIABLE
from .job import Job, deal_devices
from .keeper import Keeper
from .output import Output

FAILED_GRACE = 3.0
"""Seconds for a process to end after another one has failed."""

_FLAG = "--xla_force_host_platform_device_count"


class Crew:
    """Starts, signals and stops the processes of this machine, and posts their events.

    Args:
        job: The job.
        events: The queue for `Exited`, `Reported` and other events.
        output: The destination of their output.
        keeper: The process that ends them if this launcher is killed.
    """

    def __init__(
        self, job: Job, events: queue.SimpleQueue[Any], output: Output, keeper: Keeper
    ) -> None:
        self._job, self._events, self._output, self._keeper = job, events, output, keeper
        self._host = socket.gethostname()
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._lines: collections.Counter[int] = collections.Counter()
        """The number of lines read from each process."""
        self._watchers: list[threading.Thread] = []

    def start(self, attempt: int, coordinator: str, total: int, first: int) -> None:
        """Start all processes of this machine, numbered from `first`."""
        visible = deal_devices(self._job)
        for k in range(self._job.processes):
            env = self._environment(attempt, coordinator, total, first + k)
            if visible is not None:
                env["CUDA_VISIBLE_DEVICES"] = visible[k]
            self._spawn(first + k, attempt, env)

    def signal(self, number: int) -> None:
        """Pass a signal on to every process."""
        with self._lock:
            for process in self._running.values():
                process.send_signal(number)

    def stop(self, grace: float = FAILED_GRACE) -> None:
        """End all processes: with SIGTERM, then with SIGKILL."""
        self._kill_groups(signal.SIGTERM)
        deadline = time.monotonic() + grace
        for watcher in self._watchers:
            watcher.join(max(0.0, deadline - time.monotonic()))
        self._kill_groups(signal.SIGKILL)
        for watcher in self._watchers:
            watcher.join()
        self._watchers.clear()

    @property
    def is_running(self) -> bool:
        return bool(self._running)

    def _kill_groups(self, number: int) -> None:
        with self._lock:
            for process in self._running.values():
                _kill_group(process.pid, number)

    def _environment(
        self, attempt: int, coordinator: str, total: int, process: int
    ) -> dict[str, str]:
        env = dict(os.environ)
        env |= {
            "SHARDWISE_COORDINATOR": coordinator,
            "SHARDWISE_PROCESSES": str(total),
            "SHARDWISE_PROCESS": str(process),
            "SHARDWISE_ATTEMPT": str(attempt),
            "SHARDWISE_TIMEOUT": f"{self._job.timeout:g}",
            "PYTHONUNBUFFERED": "1",
        }
        env.pop(VARIABLE, None)  # the secret of the launchers
        if self._job.nodes == 1:  # no other machine connects to it
            env["JAX_COORDINATOR_BIND_ADDRESS"] = coordinator
        if self._job.devices is not None:
            flags = re.sub(rf"{_FLAG}=\S*", "", env.get("XLA_FLAGS", ""))
            env["XLA_FLAGS"] = f"{flags} {_FLAG}={self._job.devices}".strip()
            env["JAX_PLATFORMS"] = "cpu"
        return env

    def _spawn(self, number: int, attempt: int, env: dict[str, str]) -> None:
        self._output.open(number, attempt)
        reading, writing = os.pipe()
        env["SHARDWISE_REPORT"] = str(writing)
        env["SHARDWISE_LAUNCHER"] = str(os.getpid())
        kind = ["-m"] if self._job.module else []
        child = [sys.executable, "-m", "shardwise._runtime.launch", *kind, *self._job.command]
        process = subprocess.Popen(
            child,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[writing],
            start_new_session=True,  # a process group, to be ended as a whole
        )
        os.close(writing)
        self._keeper.add(process.pid)
        with self._lock:
            self._running[number] = process
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            _started(self._read, number, process.stdout, False),
            _started(self._read, number, process.stderr, True),
        ]
        _started(self._listen, number, reading)
        self._watchers.append(_started(self._watch, number, process, readers))

    def _read(self, number: int, stream: IO[bytes], error: bool) -> None:
        lost = False
        with stream:
            for line in stream:
                self._lines[number] += 1
                try:
                    self._output.line(number, line, error)
                except (OSError, ValueError) as problem:
                    # The output is closed or the disk is full: the process must not wait for it.
                    if not lost:
                        lost = True
                        with contextlib.suppress(OSError, ValueError):
                            self._output.say(f"output of process {number} is lost: {problem}")

    def _listen(self, number: int, reading: int) -> None:
        with os.fdopen(reading, encoding="utf-8") as lines:
            for line in lines:
                report = {"process": number, "host": self._host, **json.loads(line)}
                self._events.put(from_message(report))

    def _watch(
        self, number: int, process: subprocess.Popen[bytes], readers: list[threading.Thread]
    ) -> None:
        self._await_end(number, process.pid)
        # End its child processes too, before its process group can be reused.
        with self._lock:
            _kill_group(process.pid, signal.SIGKILL)
            code = process.wait()
            del self._running[number]
        self._keeper.remove(process.pid)
        for reader in readers:
            self._drain(number, reader)
        self._output.close(number)
        self._events.put(Exited(number, self._host, code, self._output.tail(number)))

    def _drain(self, number: int, reader: threading.Thread) -> None:
        """Wait until the output of a process is read, but not for others with the same pipe."""
        for _ in range(10):
            count = self._lines[number]
            reader.join(2.0)
            if not reader.is_alive() or self._lines[number] == count:
                return

    def _await_end(self, number: int, pid: int) -> None:
        """Wait until a process has ended, without reaping it; report when it is stopped."""
        changes = os.WSTOPPED | os.WCONTINUED
        while True:
            status = os.waitid(os.P_PID, pid, os.WEXITED | changes | os.WNOWAIT)
            if status is None or status.si_code not in (os.CLD_STOPPED, os.CLD_CONTINUED):
                return
            os.waitid(os.P_PID, pid, changes | os.WNOHANG)  # consume this change
            continued = status.si_code == os.CLD_CONTINUED
            self._events.put(Paused(number, self._host, continued))


def _kill_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _started(work: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread

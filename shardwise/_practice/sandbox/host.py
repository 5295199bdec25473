"""The judge's side: ask for runs, wait for their answers, and outlive whatever they do."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._errors import ShardwiseError, explain_error, require

STARTING = 120.0
"""Seconds that importing JAX may take."""

SPARE = 10.0
"""Seconds after its limit that a run is waited for before the nursery itself is given up."""

ANSWER = 32 << 20
"""Bytes of one answer, at most."""

PRINTED = 4_000
"""Characters of what a solution prints that are kept."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one run may take."""

    seconds: float = 30.0
    """On the clock."""
    cpu: int = 20
    """Seconds of one processor."""
    memory: int = 2 << 30
    """Bytes beyond what JAX takes by itself."""
    output: int = 1 << 20
    """Bytes that it may print, and the size of any file that it writes."""


@dataclasses.dataclass
class Ran:
    """How a run ended."""

    data: dict[str, Any] | None = None
    """The answer, if there is one that can be read."""
    late: bool = False
    """Whether it was stopped at its limit of time, on the clock or of computing."""
    skipped: bool = False
    """Whether it was not run to its end because another run of the file had no end."""
    code: int = 0
    """The exit status; negative for a signal."""
    seconds: float = 0.0
    cpu: float = 0.0
    memory: int = 0
    printed: str = ""
    garbled: bool = False
    """Whether something came back that is no answer."""

    def parts(self, count: int) -> list[Ran]:
        """The runs of one process, each by itself."""
        runs = (self.data or {}).get("runs")
        if isinstance(runs, list) and len(runs) == count and all(isinstance(r, dict) for r in runs):
            return [dataclasses.replace(self, data=run, cpu=self.cpu / count) for run in runs]
        broken = self.data is not None and "error" not in self.data
        data = None if broken else self.data
        return [dataclasses.replace(self, data=data, garbled=self.garbled or broken)] * count


class Sandbox:
    """A nursery, started when first needed, and started again if a run takes it along."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: socket.socket | None = None
        self._rest = b""
        self._number = 0
        self._ready = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def start(self) -> None:
        """Start the nursery, without waiting for it."""
        if self._process is not None and self._process.poll() is None:
            return
        require("flax", "shardwise practice")
        self.close()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "shardwise._practice.sandbox.nursery"]
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
        theirs.close()
        self._talk, self._rest, self._ready = ours, b"", False

    def close(self) -> None:
        """End the nursery and all it has started."""
        if self._talk is not None:
            self._talk.close()
            self._talk = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def run(self, jobs: Sequence[dict[str, Any]], source: str, name: str) -> list[Ran]:
        """Run a file for each job, as many at a time as there are processors.

        Jobs that want the same number of devices share processes: JAX compiles less.
        """
        lanes = _processors()
        groups = _groups(jobs, lanes)
        ran = self._run([[jobs[i] for i in group] for group in groups], source, name, lanes)
        found: dict[int, Ran] = {}
        for group, one in zip(groups, ran, strict=True):
            found |= dict(zip(group, one.parts(len(group)), strict=True))
        return [found[index] for index in range(len(jobs))]

    def _run(
        self, jobs: Sequence[list[dict[str, Any]]], source: str, name: str, lanes: int
    ) -> list[Ran]:
        self.start()
        self._wait_until_ready()
        waiting = list(enumerate(jobs))
        found: dict[int, Ran] = {}
        going: dict[int, _Going] = {}
        try:
            while waiting or going:
                while waiting and len(going) < lanes:
                    index, job = waiting.pop(0)
                    one = self._launch(index, job, source, name)
                    going[one.run] = one
                self._listen(going, found)
                if any(one.late for one in found.values()):
                    self._give_up(waiting, going, found)
        finally:
            for one in going.values():
                one.close()
        return [found[index] for index in range(len(jobs))]

    def _give_up(self, waiting: list[Any], going: dict[int, _Going], found: dict[int, Ran]) -> None:
        """One run has no end: the others of the same file are not waited for."""
        for index, _ in waiting:
            found[index] = Ran(skipped=True)
        waiting.clear()
        for one in going.values():
            if not one.skipped and self._talk is not None:
                with contextlib.suppress(OSError):
                    self._talk.sendall(json.dumps({"stop": one.run}).encode() + b"\n")
            one.skipped = True

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + STARTING
        while not self._ready:
            line = self._line(end - time.monotonic())
            if line is None:
                self.close()
                raise ShardwiseError(
                    explain_error(
                        "the process that runs solutions does not start",
                        where="shardwise practice",
                        rule="It imports jax, flax and optax.",
                        remedy="see whether this works: python -c 'import jax, flax, optax'.",
                    )
                )
            self._ready = bool(line.get("ready"))

    def _line(self, seconds: float) -> dict[str, Any] | None:
        """The next word from the nursery; None if it is silent or gone."""
        assert self._talk is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._talk], [], [], max(0.0, seconds))
            got = self._talk.recv(1 << 16) if ready else b""
            if not got:
                return None
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _launch(self, index: int, jobs: list[dict[str, Any]], source: str, name: str) -> _Going:
        self.start()
        self._wait_until_ready()
        assert self._talk is not None
        self._number += 1
        folder = Path(tempfile.mkdtemp(prefix="shardwise-practice-"))
        (folder / "run").mkdir()
        (folder / "run" / name).write_text(source, encoding="utf-8")
        (folder / "jobs").write_bytes(pickle.dumps(jobs))
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        nonce = b64encode(os.urandom(18)).decode()
        asked = {
            "run": self._number,
            "seconds": self.limits.seconds,
            "folder": str(folder),
            "name": name,
            "nonce": nonce,
            "limits": dataclasses.asdict(self.limits),
        }
        line = json.dumps(asked).encode() + b"\n"
        with contextlib.suppress(OSError):
            socket.send_fds(self._talk, [line], [writes])
        os.close(writes)
        return _Going(self._number, index, folder, reads, nonce, time.monotonic())

    def _listen(self, going: dict[int, _Going], found: dict[int, Ran]) -> None:
        """Take in what comes, and end what has come to its end."""
        assert self._talk is not None
        ready, _, _ = select.select(
            [self._talk, *(one.pipe for one in going.values() if one.open)], [], [], 0.2
        )
        for one in going.values():
            if one.pipe in ready:
                one.read()
        said = []
        if self._talk in ready or b"\n" in self._rest:
            while (line := self._line(0.0)) is not None:
                said.append(line)
            gone = not said
        else:
            gone = self._process is None or self._process.poll() is not None
        for line in said:
            one = going.pop(int(line.get("run", -1)), None)
            if one is not None:
                found[one.index] = one.finish(line, self.limits)
        now = time.monotonic()
        stuck = any(now - one.began > self.limits.seconds + SPARE for one in going.values())
        if gone or stuck:
            # The nursery is dead or deaf: what it was running has ended it.
            self.close()
            for one in list(going.values()):
                found[one.index] = one.finish({"late": stuck, "code": -signal.SIGKILL}, self.limits)
            going.clear()


@dataclasses.dataclass
class _Going:
    """A run under way."""

    run: int
    index: int
    folder: Path
    pipe: int
    nonce: str
    began: float
    got: bytes = b""
    open: bool = True
    skipped: bool = False

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.open:
                more = os.read(self.pipe, 1 << 16)
                self.open = bool(more) and len(self.got) <= ANSWER
                self.got += more

    def finish(self, line: dict[str, Any], limits: Limits) -> Ran:
        self.read()
        data = self._answer()
        code = int(line.get("code", 0))
        spent = code in (-signal.SIGXCPU, -signal.SIGKILL) and line.get("cpu", 0) > limits.cpu - 1
        ran = Ran(
            data=data,
            late=bool(line.get("late")) or spent,
            skipped=self.skipped and data is None,
            code=code,
            seconds=time.monotonic() - self.began,
            cpu=float(line.get("cpu", 0.0)),
            memory=int(line.get("memory", 0)),
            printed=self._printed(),
            garbled=data is None and bool(self.got),
        )
        self.close()
        return ran

    def _answer(self) -> dict[str, Any] | None:
        """The one line with our nonce; anything beside it makes the whole unreadable."""
        head, _, body = self.got.partition(b" ")
        if head.decode("ascii", "replace") != self.nonce or body.count(b"\n") != 1:
            return None
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) and body.endswith(b"\n") else None

    def _printed(self) -> str:
        try:
            with open(self.folder / "printed", "rb") as file:
                text = file.read(PRINTED + 1).decode("utf-8", "replace")
        except OSError:
            return ""
        return text if len(text) <= PRINTED else text[:PRINTED] + " ..."

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.pipe)
        shutil.rmtree(self.folder, ignore_errors=True)


def _processors() -> int:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(4, own or 1))


def _groups(jobs: Sequence[Mapping[str, Any]], lanes: int) -> list[list[int]]:
    """Which jobs share a process: those with as many devices, dealt out evenly."""
    by_devices: dict[int, list[int]] = {}
    for index, job in enumerate(jobs):
        by_devices.setdefault(job["devices"], []).append(index)
    return [own[k::lanes] for own in by_devices.values() for k in range(min(lanes, len(own)))]


def _environment() -> dict[str, str]:
    """What JAX should find: CPU alone, no flags of ours, no accelerator taken."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTHON"))}
    path = os.pathsep.join(
        [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    )
    return {
        **kept,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }

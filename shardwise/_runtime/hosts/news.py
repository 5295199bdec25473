"""The news of a job: which processes have failed, with which error, and which have ended.

A thread in each process reads the news once a second, and a waiting exchange raises them as an
error. A collective cannot be interrupted, so a process in one is ended a few seconds after it has
printed the news; its end interrupts the others.

The end of a process is a failure only if another one waits for it. So each process records the
number of steps and sections in which it took part: a process that has started one more cannot
finish it, any other may continue.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from ... import _jax
from ..._base.errors import PeerError, explain_error, text_of
from ..launch import report
from ..launch.leaving import AGAIN, NOTICE, still_running

EVERY = 1.0
"""Seconds between two reads of the news."""

GRACE = 5.0
"""Seconds for a process to end by itself after another one has failed."""

LATE = 60.0
"""Seconds for cleanup after the error was raised, before the process is ended."""

FAILED = 77
"""The exit code of a process that was ended because another one failed."""

ALONE = 3600.0
"""Seconds that ended processes wait for one that still runs, before JAX's own timeout."""

ROOT = "shardwise"
"""The prefix of this package's keys in JAX's coordination service."""


@dataclasses.dataclass
class Section:
    """A block that all processes run together, such as one evaluation, with the same name on all.

    Exchanges are counted within it, so that the numbers still agree after processes left an earlier
    section at different places, each with an error.
    """

    name: str
    exchanges: int = 0
    inner: int = 0
    where: str = ""


@dataclasses.dataclass(frozen=True)
class End:
    """The record of a process that ended its script: the steps and sections it took part in."""

    process: int
    host: str
    sections: int
    steps: int

    @property
    def who(self) -> str:
        """The process and its host."""
        return f"process {self.process} on {self.host}"


class News:
    """The news that this process has received; a thread reads them.

    Args:
        client: JAX's client of the coordination service.
        process: The number of this process.
        total: The number of processes.
    """

    def __init__(self, client: Any, process: int, total: int) -> None:
        self._client, self._process, self._total = client, process, total
        self._heard = threading.Event()
        self._words = ""
        self._scope = ""  # the section it is about; the first one is the whole job
        self._raised_at: float | None = None
        self._code = 0
        self.left = ""
        """The process that ended its script too early, if one did."""
        self.ends: dict[int, End] = {}
        self.steps = 0
        self.sections = [Section("job")]
        self._pid, self._parts, self._reported_end = os.getpid(), _jax.distributed_parts(), False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="shardwise-news", daemon=True)
        self._thread.start()
        # Registered after JAX's handlers, so it runs before them: they wait for all processes.
        atexit.register(self._end)

    @property
    def has_heard(self) -> bool:
        return self._heard.is_set()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Count the step that the block dispatches, unless it raises."""
        self.check()
        self.steps += 1
        try:
            yield
        except BaseException:
            self.steps -= 1
            raise

    def report(self, words: str, section: str = "job") -> None:
        """Report a failure of this process to the others, in one section or in the whole job."""
        if not self._leaving.is_set():
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/news/failed/{section}/{self._process}", words)

    def fail(self, words: str, code: int = 1) -> None:
        """Report the failure of this process, and do not wait for the others at exit."""
        is_cause = bool(self.left) or not self._heard.is_set()
        if is_cause:
            self.report(words)
        self._code = self._code or code
        self._leaving.set()
        if self._process == 0 and is_cause:
            self._outlast_others()

    def check(self) -> None:
        """Raise an error if another process has failed."""
        if self._heard.is_set() and self._is_in(self._scope):
            self._raised_at = time.monotonic()
            raise PeerError(self._words)

    def lost(self, error: BaseException) -> PeerError:
        """Return the error for a broken connection, with the report of the process that failed."""
        self._heard.wait(3 * EVERY)
        self._raised_at = time.monotonic()
        first = (text_of(error).strip().splitlines() or [type(error).__name__])[0]
        return PeerError(self._words or f"another process is gone: {first}")

    def missed(self, of: int, where: str) -> PeerError:
        """Return the error for a process that ended without the value this one waits for."""
        self.left = self.ends[of].who
        return PeerError(self._early(self.ends[of], where))

    def _is_in(self, scope: str) -> bool:
        return any(section.name == scope for section in self.sections)

    def _misses(self, sections: int) -> bool:
        """Return whether this process is in a section that another, with this count, never entered.

        A process that took part has stored its values, and may end before they are read.
        """
        return len(self.sections) > 1 and self.sections[0].inner > sections

    def _waits_in(self, end: End) -> str:
        """Return where this process waits for one that has ended; "" if it does not."""
        if self.steps > end.steps:
            return f"step {end.steps + 1} of data_parallel"
        sections = [*self.sections]
        return sections[1].where if self._misses(end.sections) and len(sections) > 1 else ""

    def _early(self, end: End, where: str) -> str:
        progress = f"{end.steps} step{'s' * (end.steps != 1)} of data_parallel"
        return explain_error(
            f"{end.who} has ended its script, after {progress}, while process {self._process} on "
            f"{socket.gethostname()} waits for it in {where}.",
            rule="All processes run the same number of steps, and take part in all collectives.",
            remedy="make their loops equally long: use sw.fit, or stop all of them when the "
            "shortest data ends.",
        )

    def _listen(self) -> None:
        while not self._leaving.wait(EVERY):
            if _jax.distributed_parts() != self._parts:  # the script itself has shut JAX down
                self._report_end()
            try:
                rows = self._client.key_value_dir_get(f"{ROOT}/news/")
            except Exception:
                continue  # the first process is gone or cannot be reached: JAX's heartbeat decides
            for key, message in sorted(rows, key=lambda row: "/ended/" in row[0]):  # failures first
                kind, scope, process = key.removeprefix(f"{ROOT}/news/").split("/")
                if int(process) == self._process:
                    continue
                end = None
                if kind == "ended":
                    end = self.ends[int(process)] = End(**json.loads(message))
                    if not (section := self._waits_in(end)):
                        continue
                    message = self._early(end, section)
                elif not self._is_in(scope):
                    continue
                self._hear(message, scope, end)
                break

    def _hear(self, words: str, scope: str, end: End | None) -> None:
        """Record and print the news, and end the process if it does not react in time."""
        self._take(words, scope, end)
        heard_at = time.monotonic()
        while not self._leaving.wait(EVERY / 5):
            resolved = end is not None and self._raised_at is None and not self._waits_in(end)
            if resolved or not self._is_in(scope):  # the script caught the error
                self._words, self._raised_at, self.left = "", None, ""
                self._heard.clear()
                return
            since, limit = (heard_at, GRACE) if self._raised_at is None else (self._raised_at, LATE)
            if time.monotonic() - since > limit:
                self._give_up()

    def _take(self, words: str, scope: str, end: End | None) -> None:
        self._words, self._scope, self.left = words, scope, "" if end is None else end.who
        self._heard.set()
        print(f"shardwise: {words}", file=sys.stderr, flush=True)

    def _give_up(self) -> None:
        """End this process because of the news."""
        if self.left:  # the others may not have noticed
            report.send("reported", code=FAILED, words=self._words, peer=True, left=self.left)
            self.fail(self._words, FAILED)
        self._leave(FAILED)

    def _outlast_others(self) -> None:
        """Wait for the others to leave: process 0 hosts the coordination service."""
        deadline = time.monotonic() + GRACE + 2 * EVERY
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                if len(self._client.key_value_dir_get(f"{ROOT}/left/")) >= self._total - 1:
                    return
            time.sleep(EVERY / 5)

    def _leave(self, code: int) -> None:
        """End this process without JAX's exit handlers, which would wait for dead processes."""
        _flush()
        if self._process:
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/left/{self._process}", "")
        os._exit(code)

    def _report_end(self) -> None:
        """Report to the others that this process has ended its script."""
        if not self._reported_end:
            self._reported_end = True
            end = End(self._process, socket.gethostname(), self.sections[0].inner, self.steps)
            payload = json.dumps(dataclasses.asdict(end))
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/news/ended/job/{self._process}", payload)

    def _end(self) -> None:
        """Report the end at interpreter exit, and stop the thread before JAX shuts down."""
        if os.getpid() != self._pid:
            return  # a process that the script has forked
        code = self._code or (FAILED if self._heard.is_set() else 0)
        if code:
            self._leave(code)
        self._report_end()
        if _jax.distributed_parts() == self._parts:
            try:
                self._await_ends()
            except KeyboardInterrupt:
                self._leave(130)
        self._leaving.set()
        self._thread.join(2 * EVERY)

    def _await_ends(self) -> None:
        """Wait until all processes have ended, longer than JAX's own exit would wait."""
        started, notice, pause = time.monotonic(), NOTICE, EVERY / 50
        while (elapsed := time.monotonic() - started) < ALONE:
            try:
                rows = self._client.key_value_dir_get(f"{ROOT}/news/ended/job/")
            except Exception:
                return  # JAX is shut down, or the first process is gone
            ends = [End(**json.loads(payload)) for _, payload in rows]
            if len(ends) >= self._total and not self._heard.is_set():
                early = min(ends, key=lambda end: end.steps)
                if not (section := self._waits_in(early)):
                    return
                self._take(self._early(early, section), "job", early)
            if self._heard.is_set():
                self._give_up()
            ended = {end.process for end in ends}
            if elapsed > notice:
                notice *= AGAIN
                # A launcher prints the message itself.
                if self._process == min(ended, default=-1) and not report.has_launcher():
                    running = {*range(self._total)} - ended
                    message = still_running(ended, running, elapsed)
                    print(f"shardwise: {message}", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(2 * pause, EVERY)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

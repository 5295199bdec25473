"""The news of a job: who has failed, in which words, and who has ended.

A thread in each process reads them once a second. What waits in an exchange raises them. What is
stuck in a collective cannot be woken, so the process is ended a few seconds after its news were
printed: its end wakes the others.

A process that has ended its script has failed only if another one waits for it. That is known, not
guessed: it leaves behind how many steps and sections it has taken part in, and whoever has begun
one more cannot finish it. Whoever has not may go on alone for as long as it likes.
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
"""Seconds between two looks at the news."""

GRACE = 5.0
"""Seconds for a process to end by itself after another one has failed."""

LATE = 60.0
"""Seconds for what it does about the error once it was raised, before it is ended all the same."""

FAILED = 77
"""The exit code of a process that was ended because another one had failed."""

ALONE = 3600.0
"""Seconds that processes at their end wait for one that still works, before JAX's own limit."""

ROOT = "shardwise"
"""Where the values of this package are, among those of JAX's coordination service."""


@dataclasses.dataclass
class Section:
    """Something that all processes do together, such as one evaluation, by the same name on all.

    Exchanges are counted within it, so that processes that left an earlier one at different
    places, each with an error of its own, still understand each other.
    """

    name: str
    exchanges: int = 0
    inner: int = 0
    where: str = ""


@dataclasses.dataclass(frozen=True)
class End:
    """What a process leaves behind at the end of its script: how far it took part."""

    process: int
    host: str
    sections: int
    steps: int

    @property
    def who(self) -> str:
        """The process and its host."""
        return f"process {self.process} on {self.host}"


class News:
    """What this process has heard of the others; one thread that listens.

    Args:
        client: JAX's client of the coordination service.
        own: The number of this process.
        total: How many there are.
    """

    def __init__(self, client: Any, own: int, total: int) -> None:
        self._client, self._own, self._total = client, own, total
        self._heard = threading.Event()
        self._words = ""
        self._scope = ""  # the section it is about; the first one is the whole job
        self._raised_at: float | None = None
        self._code = 0
        self.left = ""
        """The process that has ended its script too early, if one has."""
        self.ends: dict[int, End] = {}
        self.steps = 0
        self.sections = [Section("job")]
        self._pid, self._parts, self._told_end = os.getpid(), _jax.distributed_parts(), False
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="shardwise-news", daemon=True)
        self._thread.start()
        # After JAX's own, so before them: their end is where all processes meet.
        atexit.register(self._end)

    @property
    def has_heard(self) -> bool:
        return self._heard.is_set()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around the start of a step on the devices of all processes; one that fails is none."""
        self.check()
        self.steps += 1
        try:
            yield
        except BaseException:
            self.steps -= 1
            raise

    def tell(self, words: str, section: str = "job") -> None:
        """Let the others know that this process has failed, altogether or in a section."""
        if not self._leaving.is_set():
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/news/failed/{section}/{self._own}", words)

    def fail(self, words: str, code: int = 1) -> None:
        """End the part of this process in the job: tell, and do not wait for the others at exit."""
        mine = bool(self.left) or not self._heard.is_set()  # others have not heard it yet
        if mine:
            self.tell(words)
        self._code = self._code or code
        self._leaving.set()
        if self._own == 0 and mine:
            self._outlast_others()

    def check(self) -> None:
        """Raise what was heard."""
        if self._heard.is_set() and self._is_in(self._scope):
            self._raised_at = time.monotonic()
            raise PeerError(self._words)

    def lost(self, error: BaseException) -> PeerError:
        """Return what to raise for an error that says a connection broke: the words of whoever
        failed."""
        self._heard.wait(3 * EVERY)
        self._raised_at = time.monotonic()
        first = (text_of(error).strip().splitlines() or [type(error).__name__])[0]
        return PeerError(self._words or f"another process is gone: {first}")

    def missed(self, of: int, where: str) -> PeerError:
        """Return what to raise where a process has ended without the value that this one waits
        for."""
        self.left = self.ends[of].who
        return PeerError(self._early(self.ends[of], where))

    def _is_in(self, scope: str) -> bool:
        return any(section.name == scope for section in self.sections)

    def _misses(self, taken: int) -> bool:
        """Return whether this is in a section that a process, which took part in so many, has not
        seen.

        One that did take part has left what others need of it with the coordination service, and
        may end before they have read it.
        """
        return len(self.sections) > 1 and self.sections[0].inner > taken

    def _waits_in(self, end: End) -> str:
        """Return where this process waits for one that has ended, and will for ever; or nowhere."""
        if self.steps > end.steps:
            return f"step {end.steps + 1} of data_parallel"
        sections = [*self.sections]
        return sections[1].where if self._misses(end.sections) and len(sections) > 1 else ""

    def _early(self, end: End, where: str) -> str:
        taken = f"{end.steps} step{'s' * (end.steps != 1)} of data_parallel"
        return explain_error(
            f"{end.who} has ended its script, after {taken}, while process {self._own} on "
            f"{socket.gethostname()} waits for it in {where}.",
            rule="All processes take the same number of steps, and what they do together they all "
            "do.",
            remedy="make their loops equally long: sw.fit does, or stop all of them where the "
            "shortest data ends and leave out the rest.",
        )

    def _listen(self) -> None:
        while not self._leaving.wait(EVERY):
            if _jax.distributed_parts() != self._parts:  # the script itself has shut JAX down
                self._tell_end()
            try:
                rows = self._client.key_value_dir_get(f"{ROOT}/news/")
            except Exception:
                continue  # the first process is gone or cannot be reached: JAX's heartbeat decides
            for key, words in sorted(rows, key=lambda row: "/ended/" in row[0]):  # failures first
                kind, scope, process = key.removeprefix(f"{ROOT}/news/").split("/")
                if int(process) == self._own:
                    continue
                end = None
                if kind == "ended":
                    end = self.ends[int(process)] = End(**json.loads(words))
                    if not (where := self._waits_in(end)):
                        continue
                    words = self._early(end, where)
                elif not self._is_in(scope):
                    continue
                self._hear(words, scope, end)
                break

    def _hear(self, words: str, scope: str, end: End | None) -> None:
        """Pass the words on, and see to it that the process leaves what it was in."""
        self._take(words, scope, end)
        heard = time.monotonic()
        while not self._leaving.wait(EVERY / 5):
            freed = end is not None and self._raised_at is None and not self._waits_in(end)
            if freed or not self._is_in(scope):  # it has failed, and somebody caught that
                self._words, self._raised_at, self.left = "", None, ""
                self._heard.clear()
                return
            since, limit = (heard, GRACE) if self._raised_at is None else (self._raised_at, LATE)
            if time.monotonic() - since > limit:
                self._give_up()

    def _take(self, words: str, scope: str, end: End | None) -> None:
        self._words, self._scope, self.left = words, scope, "" if end is None else end.who
        self._heard.set()
        print(f"shardwise: {words}", file=sys.stderr, flush=True)

    def _give_up(self) -> None:
        """End this process for what was heard."""
        if self.left:  # nobody else may know
            report.tell(code=FAILED, words=self._words, peer=True, left=self.left)
            self.fail(self._words, FAILED)
        self._leave(FAILED)

    def _outlast_others(self) -> None:
        """With the first process goes the place where the words are kept: it is the last to go."""
        until = time.monotonic() + GRACE + 2 * EVERY
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                if len(self._client.key_value_dir_get(f"{ROOT}/left/")) >= self._total - 1:
                    return
            time.sleep(EVERY / 5)

    def _leave(self, code: int) -> None:
        """End this process without JAX's own end, which waits for processes that are gone."""
        _flush()
        if self._own:
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/left/{self._own}", "")
        os._exit(code)

    def _tell_end(self) -> None:
        """Let the others know that this process takes part in nothing more."""
        if not self._told_end:
            self._told_end = True
            end = End(self._own, socket.gethostname(), self.sections[0].inner, self.steps)
            said = json.dumps(dataclasses.asdict(end))
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{ROOT}/news/ended/job/{self._own}", said)

    def _end(self) -> None:
        """At the end of the interpreter: say so, and stop listening while JAX is still whole."""
        if os.getpid() != self._pid:
            return  # a process that the script has forked
        code = self._code or (FAILED if self._heard.is_set() else 0)
        if code:
            self._leave(code)
        self._tell_end()
        if _jax.distributed_parts() == self._parts:
            try:
                self._await_ends()
            except KeyboardInterrupt:
                self._leave(130)
        self._leaving.set()
        self._thread.join(2 * EVERY)

    def _await_ends(self) -> None:
        """Wait until all have ended: one may work on alone for longer than JAX's end would wait."""
        began, notice, pause = time.monotonic(), NOTICE, EVERY / 50
        while (waited := time.monotonic() - began) < ALONE:
            try:
                rows = self._client.key_value_dir_get(f"{ROOT}/news/ended/job/")
            except Exception:
                return  # JAX is shut down, or the first process is gone
            ends = [End(**json.loads(said)) for _, said in rows]
            if len(ends) >= self._total and not self._heard.is_set():
                early = min(ends, key=lambda end: end.steps)
                if not (where := self._waits_in(early)):
                    return
                self._take(self._early(early, where), "job", early)
            if self._heard.is_set():
                self._give_up()
            ended = {end.process for end in ends}
            if waited > notice:
                notice *= AGAIN
                # A launcher says it itself.
                if self._own == min(ended, default=-1) and not report.is_heard():
                    running = {*range(self._total)} - ended
                    words = still_running(ended, running, waited)
                    print(f"shardwise: {words}", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(2 * pause, EVERY)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()

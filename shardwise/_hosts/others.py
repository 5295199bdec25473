"""The other processes of the job: exchanging a few bytes, and hearing when one has failed.

JAX's coordination service, in the first process, holds small values by name. Processes meet there
at the beginning and at the end of an evaluation or a training, never once per step. All of them
call the same exchanges in the same order, so running numbers name them.

A thread in each process reads the news once a second: who has failed, in which words, and who has
ended. What waits here raises them. What is stuck in a collective cannot be woken, so the process
is ended a few seconds after its news were printed: its end wakes the others.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from .. import _jax
from .._errors import PeerError, text_of

EVERY = 1.0
"""Seconds between two looks at the news."""

GRACE = 5.0
"""Seconds for a process to end by itself after another one has failed."""

LATE = 60.0
"""Seconds for what it does about the error once it was raised, before it is ended all the same."""

FAILED = 77
"""The exit code of a process that was ended because another one had failed."""

_CHUNK = 1 << 20
_ROOT = "shardwise"


def count() -> int:
    """How many processes there are. Does not start JAX's devices."""
    return _jax.distributed_place()[1]


def index() -> int:
    """The number of this process."""
    return _jax.distributed_place()[0]


def is_first() -> bool:
    """Whether this is the process that speaks for all: logs, progress, files."""
    return index() == 0


@dataclasses.dataclass
class Section:
    """Something that all processes do together, such as one evaluation, by the same name on all.

    Exchanges are counted within it, so that processes that left an earlier one at different
    places, each with an error of its own, still understand each other.
    """

    name: str
    exchanges: int = 0
    inner: int = 0


class News:
    """What this process has heard of the others; one thread that listens.

    Args:
        client: JAX's client of the coordination service.
        own: The number of this process.
    """

    def __init__(self, client: Any, own: int) -> None:
        self._client, self._own = client, own
        self._heard = threading.Event()
        self._words = ""
        self._scope = ""  # the section it is about; the first one is the whole job
        self._raised_at: float | None = None
        self._code = 0
        self.sections = [Section("job")]
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="shardwise-news", daemon=True)
        self._thread.start()
        # After JAX's own, so before them: their end is where all processes meet.
        atexit.register(self._end)

    @property
    def has_heard(self) -> bool:
        return self._heard.is_set()

    def tell(self, words: str, section: str = "job") -> None:
        """Let the others know that this process has failed, altogether or in a section."""
        if not self._leaving.is_set():
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{_ROOT}/news/failed/{section}/{self._own}", words)

    def fail(self, words: str, code: int = 1) -> None:
        """End the part of this process in the job: tell, and do not wait for the others at exit."""
        if not self._heard.is_set():
            self.tell(words)
        self._code = self._code or code
        self._leaving.set()
        if self._own == 0 and not self._heard.is_set():
            self._outlast_others()

    def check(self) -> None:
        """Raise what was heard."""
        if self._heard.is_set() and self._is_in(self._scope):
            self._raised_at = time.monotonic()
            raise PeerError(self._words)

    def lost(self, error: BaseException) -> PeerError:
        """What to raise for an error that says a connection broke: the words of whoever failed."""
        self._heard.wait(3 * EVERY)
        self._raised_at = time.monotonic()
        first = (text_of(error).strip().splitlines() or [type(error).__name__])[0]
        return PeerError(self._words or f"another process is gone: {first}")

    def _is_in(self, scope: str) -> bool:
        return any(section.name == scope for section in self.sections)

    def _misses(self, taken: int) -> bool:
        """Whether this is in a section that a process, which took part in so many, has not seen.

        One that did take part has left what others need of it with the coordination service, and
        may end before they have read it.
        """
        return len(self.sections) > 1 and self.sections[0].inner > taken

    def _listen(self) -> None:
        while not self._leaving.wait(EVERY):
            try:
                rows = self._client.key_value_dir_get(f"{_ROOT}/news/")
            except Exception:
                continue  # the first process is gone or cannot be reached: JAX's heartbeat decides
            for key, words in rows:
                kind, scope, process = key.removeprefix(f"{_ROOT}/news/").split("/")
                if kind == "ended" and self._misses(int(words)):
                    words = f"process {process} has ended, and this one still waits for it"
                elif kind == "ended" or int(process) == self._own or not self._is_in(scope):
                    continue
                self._hear(words, scope)
                break

    def _hear(self, words: str, scope: str) -> None:
        """Pass the words on, and see to it that the process leaves what it was in."""
        self._words, self._scope = words, scope
        self._heard.set()
        print(f"shardwise: {words}", file=sys.stderr, flush=True)
        heard = time.monotonic()
        while not self._leaving.wait(EVERY / 5):
            if not self._is_in(scope):  # only an evaluation has failed, and somebody caught that
                self._words, self._raised_at = "", None
                self._heard.clear()
                return
            since, limit = (heard, GRACE) if self._raised_at is None else (self._raised_at, LATE)
            if time.monotonic() - since > limit:
                self._leave(FAILED)

    def _outlast_others(self) -> None:
        """With the first process goes the place where the words are kept: it is the last to go."""
        until = time.monotonic() + GRACE + 2 * EVERY
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                if len(self._client.key_value_dir_get(f"{_ROOT}/left/")) >= count() - 1:
                    return
            time.sleep(EVERY / 5)

    def _leave(self, code: int) -> None:
        """End this process without JAX's own end, which waits for processes that are gone."""
        _flush()
        if self._own:
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"{_ROOT}/left/{self._own}", "")
        os._exit(code)

    def _end(self) -> None:
        """At the end of the interpreter: say so, and stop listening while JAX is still whole."""
        code = self._code or (FAILED if self._heard.is_set() else 0)
        if code:
            self._leave(code)
        with contextlib.suppress(Exception):
            taken = str(self.sections[0].inner)
            self._client.key_value_set(f"{_ROOT}/news/ended/job/{self._own}", taken)
        self._leaving.set()
        self._thread.join(2 * EVERY)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


_news: News | None = None


def has_heard() -> bool:
    """Whether another process is known to have failed."""
    return _news is not None and _news.has_heard


def news() -> News:
    """The news of this job; listening starts with the first call."""
    global _news
    if _news is None:
        _news = News(_jax.distributed_client(), index())
    return _news


@contextlib.contextmanager
def together(where: str) -> Iterator[None]:
    """Around what all processes do together: an error in one of them reaches the others in it.

    Args:
        where: What it is, for the words: `sw.fit`.
    """
    if count() == 1:
        yield
        return
    sections = news().sections
    sections[-1].inner += 1
    section = Section(f"{sections[-1].name}.{sections[-1].inner}")
    sections.append(section)
    try:
        yield
    except PeerError:
        raise
    except BaseException as error:
        if is_connection_lost(error):
            raise news().lost(error) from error
        news().tell(worded(error, where), section.name)
        raise
    finally:
        sections.remove(section)


def worded(error: BaseException, where: str = "") -> str:
    """An error of this process as the others are told of it."""
    place = f" in {where}" if where else ""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"process {index()} on {_host()} was told to end{place}"
    text = f"{type(error).__name__}: {text_of(error)}".strip()[:2000]
    return f"process {index()} on {_host()} failed{place}: {text}"


def is_connection_lost(error: BaseException) -> bool:
    """Whether this is how JAX says that another process went away in the middle of a collective."""
    text = text_of(error)
    return isinstance(error, jax.errors.JaxRuntimeError | ValueError | RuntimeError) and (
        ("Gloo" in text and ("failed" in text or "closed" in text.lower()))
        or "Connection reset by peer" in text
        or "Connection closed by peer" in text
        or "NCCL operation" in text
        or "ncclRemoteError" in text
    )


def _name(where: str) -> str:
    section = news().sections[-1]
    section.exchanges += 1
    return f"{_ROOT}/exchange/{section.name}/{section.exchanges}/{where}"


def gather(value: bytes, where: str) -> list[bytes]:
    """The values of all processes, on all of them: one exchange of a few bytes.

    Args:
        value: That of this process.
        where: What it is for, for the words while it waits.
    """
    parts = collect(value, where)
    joined = None if parts is None else b"".join(len(p).to_bytes(8, "big") + p for p in parts)
    whole = spread(joined, where)
    found, at = [], 0
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 8], "big")
        found.append(whole[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def collect(value: bytes, where: str) -> list[bytes] | None:
    """The values of all processes, on the first one; None on the others."""
    if count() == 1:
        return [value]
    name = _name(where)
    if not is_first():
        _put(f"{name}/{index()}", value)
        return None
    found = [value, *(_get(f"{name}/{k}", k, where) for k in range(1, count()))]
    with contextlib.suppress(Exception):
        _jax.distributed_client().key_value_delete(f"{name}/")  # the service would keep it for ever
    return found


def spread(value: bytes | None, where: str) -> bytes:
    """The value of the first process, on all of them; the others give None."""
    if count() == 1:
        assert value is not None
        return value
    name = _name(where)
    if is_first():
        assert value is not None
        _put(name, value)
        return value
    return _get(name, 0, where)


def dump(value: Any) -> bytes:
    """As JSON."""
    return json.dumps(value).encode()


def load(value: bytes) -> Any:
    """From JSON."""
    return json.loads(value)


def gather_json(value: Any, where: str) -> list[Any]:
    """`gather` for what JSON can hold."""
    return [load(x) for x in gather(dump(value), where)]


def spread_json(value: Any, where: str) -> Any:
    """`spread` for what JSON can hold."""
    return load(spread(dump(value) if is_first() else None, where))


def meet(where: str) -> None:
    """Wait until all processes are here."""
    gather(b"", where)


def _put(name: str, value: bytes) -> None:
    # In pieces: one message of the coordination service has its limit.
    client = _jax.distributed_client()
    pieces = range(0, len(value), _CHUNK)
    client.key_value_set_bytes(f"{name}/size", str(len(pieces)).encode())
    for k, at in enumerate(pieces):
        client.key_value_set_bytes(f"{name}/{k}", value[at : at + _CHUNK])


def _get(name: str, of: int, where: str) -> bytes:
    pieces = int(_wait(f"{name}/size", of, where))
    return b"".join(_wait(f"{name}/{k}", of, where) for k in range(pieces))


def _wait(key: str, of: int, where: str) -> bytes:
    client = _jax.distributed_client()
    began = said = time.monotonic()
    while True:
        news().check()
        try:
            return client.blocking_key_value_get_bytes(key, int(EVERY * 1000))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise news().lost(error) from error
        now = time.monotonic()
        if now - said > 30:
            said = now
            print(
                f"shardwise: process {index()} has waited {now - began:.0f} s for process {of} "
                f"in {where}",
                file=sys.stderr,
                flush=True,
            )


def report_progress() -> None:
    """Tell a launcher, if there is one, that something is stored: a failure after it is no loop."""
    held = os.environ.get("SHARDWISE_REPORT", "")
    if held.isdigit():
        with contextlib.suppress(OSError):
            os.write(int(held), b"{}\n")


def _host() -> str:
    import socket

    return socket.gethostname()

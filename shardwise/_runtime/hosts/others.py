"""The other processes of the job: exchanges of small values.

JAX's coordination service, in process 0, stores small values by name. Processes use it at the start
and at the end of an evaluation or a training, never once per step. All of them run the same
exchanges in the same order, so exchanges are identified by number.

An exchange that waits raises an error when another process fails, or ends its script without the
value that this one waits for.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from ... import _jax
from ..._base.errors import PeerError, text_of
from ..._jax.failures import is_connection_lost, is_deadline
from ..launch import report
from .news import EVERY, ROOT, News, Section

_CHUNK = 1 << 20


def count() -> int:
    """Return how many processes there are. Does not start JAX's devices."""
    return _jax.distributed_place()[1]


def index() -> int:
    """Return the number of this process."""
    return _jax.distributed_place()[0]


def is_first() -> bool:
    """Return whether this is process 0, which writes logs, progress and files."""
    return index() == 0


_news: News | None = None


def has_heard() -> bool:
    """Return whether another process is known to have failed."""
    return _news is not None and _news.has_heard


def left_early() -> str:
    """Return the process that has ended its script while this one waited for it, if one has."""
    return "" if _news is None else _news.left


def news() -> News:
    """Return the news of this job; listening starts with the first call."""
    global _news
    if _news is None:
        _news = News(_jax.distributed_client(), *_jax.distributed_place())
    return _news


@contextlib.contextmanager
def together(where: str) -> Iterator[None]:
    """Run the block on all processes: an error in one of them is raised in the others.

    Args:
        where: Its name in messages: `sw.fit`.
    """
    if count() == 1:
        yield
        return
    sections = news().sections
    sections[-1].inner += 1
    section = Section(f"{sections[-1].name}.{sections[-1].inner}", where=where)
    sections.append(section)
    try:
        yield
    except PeerError:
        raise
    except BaseException as error:
        if is_connection_lost(error):
            raise news().lost(error) from error
        news().report(describe_failure(error, where), section.name)
        raise
    finally:
        sections.remove(section)


def describe_failure(error: BaseException, where: str = "") -> str:
    """Return the report of an error of this process for the others."""
    place = f" in {where}" if where else ""
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"process {index()} on {_host()} was interrupted or exited{place}"
    text = f"{type(error).__name__}: {text_of(error)}".strip()[:2000]
    return f"process {index()} on {_host()} failed{place}: {text}"


def _name(where: str) -> str:
    section = news().sections[-1]
    section.exchanges += 1
    return f"{ROOT}/exchange/{section.name}/{section.exchanges}/{where}"


def gather(value: Any, where: str) -> list[Any]:
    """Return the values of all processes, on all of them: one exchange of a few bytes, as JSON.

    Args:
        value: The value of this process.
        where: The purpose, for messages during the wait.
    """
    return spread(collect(value, where), where)


def collect(value: Any, where: str) -> list[Any] | None:
    """Return the values of all processes, on the first one; None on the others."""
    if count() == 1:
        return [value]
    name = _name(where)
    if not is_first():
        _put(f"{name}/{index()}", value)
        return None
    values = [value, *(_get(f"{name}/{k}", k, where) for k in range(1, count()))]
    with contextlib.suppress(Exception):
        _jax.distributed_client().key_value_delete(f"{name}/")
    return values


def spread(value: Any, where: str) -> Any:
    """Return the value of the first process, on all of them; the others pass None."""
    if count() == 1:
        return json.loads(json.dumps(value))
    name = _name(where)
    return _put(name, value) if is_first() else _get(name, 0, where)


def meet(where: str) -> None:
    """Wait until all processes are here."""
    gather(None, where)


def _put(name: str, value: Any) -> Any:
    """Store a value, in pieces, since the size of a message is limited; return it as received."""
    client, text = _jax.distributed_client(), json.dumps(value)
    pieces = range(0, len(text), _CHUNK)
    client.key_value_set(f"{name}/size", str(len(pieces)))
    for k, start in enumerate(pieces):
        client.key_value_set(f"{name}/{k}", text[start : start + _CHUNK])
    return json.loads(text)


def _get(name: str, of: int, where: str) -> Any:
    pieces = int(_wait(f"{name}/size", of, where))
    return json.loads("".join(_wait(f"{name}/{k}", of, where) for k in range(pieces)))


def _wait(key: str, of: int, where: str) -> str:
    client = _jax.distributed_client()
    started = reported = time.monotonic()
    while True:
        news().check()
        ended = of in news().ends  # its values were written before
        try:
            return client.blocking_key_value_get(key, int(EVERY * 1000))
        except Exception as error:
            if not is_deadline(error):
                raise news().lost(error) from error
            if ended:
                raise news().missed(of, where) from None
        now = time.monotonic()
        if now - reported > 30:
            reported = now
            print(
                f"shardwise: process {index()} has waited {now - started:.0f} s for process {of} "
                f"in {where}",
                file=sys.stderr,
                flush=True,
            )


def report_progress() -> None:
    """Report stored progress to the launcher: a failure after it does not count as a crash loop."""
    report.send("progressed")


def _host() -> str:
    import socket

    return socket.gethostname()

"""`run`: run one launcher."""

from __future__ import annotations

import contextlib
import queue
import signal
from collections.abc import Iterator
from typing import Any

from .crew import Crew
from .events import Signalled
from .follow import Follower
from .job import Job
from .keeper import Keeper
from .lead import Lead
from .output import Output

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(job: Job) -> int:
    """Run a job on this machine; return the exit code."""
    job.check()
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    keeper = Keeper()
    output = Output(job.log_dir, job.processes * job.nodes)
    crew = Crew(job, events, output, keeper)
    kind = Follower if job.node else Lead
    with _signals_to(events):
        try:
            return kind(job, crew, events, output).run()
        finally:
            crew.stop(0 if not crew.is_running else 5.0)
            keeper.close()


@contextlib.contextmanager
def _signals_to(events: queue.SimpleQueue[Any]) -> Iterator[None]:
    handlers = {
        number: signal.signal(number, lambda n, _: events.put(Signalled(n))) for number in FORWARDED
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

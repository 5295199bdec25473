"""The launcher of a machine other than the first: it follows the orders of the first."""

from __future__ import annotations

import queue
from typing import Any

from ..._base.errors import ShardwiseError
from .crew import Crew
from .events import Lost, OfProcess, Order, Signalled, Stopped, to_message
from .handshake import RejectedError, join
from .job import Job
from .output import Output
from .wire import Wire, dial


class Follower:
    """The launcher of another machine.

    Args:
        job: The job.
        crew: The processes of this machine.
        events: Events of this machine, and orders of the first launcher.
        output: The output, for messages.
    """

    def __init__(
        self, job: Job, crew: Crew, events: queue.SimpleQueue[Any], output: Output
    ) -> None:
        self._job, self._crew, self._events, self._output = job, crew, events, output
        self._signal: int | None = None

    def run(self) -> int:
        """Follow orders until the end; return the exit code."""
        while True:
            wire = self._join()
            if wire is None:
                return 128 + (self._signal or 0)
            code = self._follow(wire)
            if code is not None:
                return code

    def _join(self) -> Wire | None:
        host, port = self._job.coordinator
        connection = dial((host, port), self._job.timeout, self._is_signalled)
        if self._signal is not None:
            return None
        if isinstance(connection, str):
            raise ShardwiseError(
                f"no answer in {self._job.timeout:g} s: {connection}.",
                where=f"the launcher of machine 0 at {host}:{port}",
                rule="It listens there until the job has ended.",
                remedy="start it with --node 0; check the address, the port and firewalls.",
            )
        self._shake_hands(connection)
        connection.listen(
            lambda message: self._events.put(Order(message)),
            lambda reason: self._events.put(Lost(0, connection, reason)),
        )
        return connection

    def _shake_hands(self, wire: Wire) -> None:
        hello = {
            "node": self._job.node,
            "processes": self._job.processes,
            "signature": self._job.signature(),
        }
        host, port = self._job.coordinator
        try:
            join(wire, self._job.secret, hello)
        except RejectedError as error:
            wire.close()
            raise ShardwiseError(
                f"{error}.",
                where=f"the launcher of machine 0 at {host}:{port}",
                rule="Launchers of one job have the same version and the same job secret.",
                remedy="the same --secret-file, or SHARDWISE_SECRET, on all machines.",
            ) from None
        except OSError:
            wire.close()  # the listener notices, and connects again

    def _is_signalled(self) -> bool:
        try:
            event = self._events.get_nowait()
        except queue.Empty:
            return False
        if isinstance(event, Signalled):
            self._signal = event.number
        return self._signal is not None

    def _follow(self, wire: Wire) -> int | None:
        """Follow orders; return the exit code, or None if the connection was lost."""
        while True:
            event = self._events.get()
            if isinstance(event, Order):
                code = self._obey(event.order, wire)
                if code is not None:
                    return code
            elif isinstance(event, OfProcess):
                wire.send(**to_message(event))
            elif isinstance(event, Signalled):
                if self._signal is not None:  # the second signal
                    self._crew.stop(0)
                self._signal = event.number
                self._crew.signal(event.number)
                wire.send(**to_message(event))
            elif isinstance(event, Lost) and event.wire is wire:
                self._crew.stop()
                self._drain()
                if self._signal is not None:
                    return 128 + self._signal
                self._output.say(f"lost machine 0: {event.why}; trying to reach it again")
                return None

    def _obey(self, message: dict[str, Any], wire: Wire) -> int | None:
        order = message.pop("do", None)
        if order == "start":
            self._crew.start(**message)
        elif order == "stop":
            self._crew.stop()
            self._drain()
            wire.send(**to_message(Stopped(self._job.node)))
        elif order == "signal" and self._signal is None:
            self._signal = message["number"]
            self._crew.signal(message["number"])
        elif order == "end":
            self._crew.stop(0)
            wire.close()
            return int(message["code"])
        elif order == "refuse":
            raise ShardwiseError(
                message["words"],
                where=f"refused by the launcher of machine 0 at {self._job.coordinator[0]}",
                rule="All machines run the same script with the same versions and arguments.",
                remedy="use the same ones, and start this launcher again.",
            )
        return None

    def _drain(self) -> None:
        """Drop the events of processes that were stopped, and keep all others."""
        remaining = []
        while not self._events.empty():
            event = self._events.get()
            if not isinstance(event, OfProcess):
                remaining.append(event)
        for event in remaining:
            self._events.put(event)

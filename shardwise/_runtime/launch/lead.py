"""The leading launcher: it starts all processes, detects failures, restarts and ends the job."""

from __future__ import annotations

import queue
import socket
import time
from typing import Any

from ..._base.errors import ShardwiseError
from .crew import FAILED_GRACE, Crew
from .entry import Listener
from .events import (
    Ended,
    Exited,
    Joined,
    Lost,
    Paused,
    Progressed,
    Reported,
    Signalled,
    Stopped,
    from_message,
)
from .failure import Evidence, Failure, first_failure, is_known
from .job import Job
from .leaving import Leavers
from .output import Output
from .wire import Wire, shown

SETTLE = 0.7
"""Seconds to wait for the cause after the first failure event."""

PATIENCE = 15.0
"""Seconds to wait for the cause while all events are consequences of an unknown failure."""

LOOP = 3
"""This many equal failures in a row, each soon after the start, are a crash loop."""

SOON = 30.0
"""Seconds after the start in which a failure counts for a crash loop."""


class Lead:
    """The launcher of node 0, or of the only machine.

    Args:
        job: The job.
        crew: The processes of this machine.
        events: The events of all machines.
        output: The output, for messages.
    """

    def __init__(
        self, job: Job, crew: Crew, events: queue.SimpleQueue[Any], output: Output
    ) -> None:
        self._job, self._crew, self._events, self._output = job, crew, events, output
        self._wires: dict[int, Wire] = {}
        self._sizes = {0: job.processes}
        self._signal: int | None = None
        self._progressed = False
        self._paused: dict[int, str] = {}
        """The processes that a signal has stopped, and their hosts."""

    def run(self) -> int:
        """Run the job to its end; return the exit code."""
        entry = Listener(self._job, self._events, self._output) if self._job.nodes > 1 else None
        history: list[tuple[str, bool]] = []
        code = 1
        try:
            for attempt in range(self._job.restarts + 1):
                self._await_nodes()
                if self._signal is not None:
                    code = 128 + self._signal
                    break
                started = time.monotonic()
                failure = self._attempt(attempt)
                seconds = time.monotonic() - started
                code = 0 if failure is None else failure.code
                if failure is None or self._signal is not None:
                    break
                in_vain = seconds < SOON and not failure.outside and not self._progressed
                history.append((failure.line, in_vain))
                remaining = self._job.restarts - attempt
                if self._is_loop(history):
                    self._output.say(
                        f"{LOOP} attempts in a row failed alike within {SOON:g} s of their start: "
                        f"a crash loop, which another restart would not end.\n{failure.brief}"
                    )
                    break
                if remaining:
                    self._output.say(
                        f"starting again after an attempt of {seconds:.0f} s, {remaining} "
                        f"restart{'s' * (remaining > 1)} left"
                    )
                elif self._output.interrupted:  # repeat the failure, so that it is the last message
                    self._output.say(failure.brief)
            return code
        finally:
            for wire in self._wires.values():
                wire.send(do="end", code=code)
            if entry is not None:
                entry.close()
            for wire in self._wires.values():
                wire.close()

    @staticmethod
    def _is_loop(history: list[tuple[str, bool]]) -> bool:
        last = history[-LOOP:]
        return len(last) == LOOP and len(set(last)) == 1 and last[0][1]

    # --- one attempt ------------------------------------------------------------------------

    def _attempt(self, attempt: int) -> Failure | None:
        """Start all processes and wait; return None if all succeeded."""
        self._progressed = False
        self._paused.clear()
        host = self._job.coordinator[0] if self._job.nodes > 1 else "127.0.0.1"
        address = f"{host}:{_free_port(host)}"
        total, first = sum(self._sizes.values()), 0
        for node in range(self._job.nodes):
            order = {"attempt": attempt, "coordinator": address, "total": total, "first": first}
            if node:
                self._wires[node].send(do="start", **order)
            else:
                self._crew.start(**order)
            first += self._sizes[node]
        leavers = Leavers(total)
        running = set(range(total))
        evidence = self._watch(running, leavers)
        if self._signal is not None:
            self._stop()
            return Failure("the launcher", "signalled", "", 128 + self._signal, True)
        if not evidence:
            return None
        self._settle(evidence, leavers, running)
        failure = leavers.blamed(evidence) or first_failure(evidence, self._paused)
        self._output.say(str(failure))
        self._stop()
        return failure

    def _watch(self, running: set[int], leavers: Leavers) -> list[Evidence]:
        """Wait until all have ended, or for the first failure event."""
        deadline: float | None = None
        while running:
            remaining = 1.0 if deadline is None else deadline - time.monotonic()
            if deadline is not None and remaining <= 0:
                self._output.say(f"still running {self._job.grace:g} s after the signal: killed")
                break
            event = self._next(min(remaining, 1.0))
            if message := leavers.notice(running):
                self._output.say(message)
            if isinstance(event, Ended):
                leavers.add(event)
            elif isinstance(event, Signalled):
                if deadline is not None:  # the second signal
                    break
                deadline = time.monotonic() + self._job.grace
                self._pass_on(event.number)
            elif isinstance(event, Exited):
                running.discard(event.process)
                if event.code and deadline is None:
                    return [event]
            elif isinstance(event, Reported | Lost) and deadline is None:
                return [event]
        return []

    def _settle(self, evidence: list[Evidence], leavers: Leavers, running: set[int]) -> None:
        """Collect further evidence for a moment, or longer while there are only consequences.

        Once no process is `running`, no more events arrive.
        """
        started = time.monotonic()
        while (elapsed := time.monotonic() - started) < PATIENCE:
            if elapsed >= SETTLE and (
                not running or self._paused or is_known(evidence) or leavers.blamed(evidence)
            ):
                return
            event = self._next(SETTLE / 4)
            if isinstance(event, Ended):
                leavers.add(event)
            elif isinstance(event, Signalled):
                self._signal = event.number
            elif isinstance(event, Reported | Lost):
                evidence.append(event)
            elif isinstance(event, Exited):
                running.discard(event.process)
                evidence += [event] * bool(event.code)

    def _pass_on(self, number: int) -> None:
        self._signal = number
        self._crew.signal(number)
        for wire in self._wires.values():
            wire.send(do="signal", number=number)

    def _stop(self) -> None:
        """End all processes that still run, and wait for them."""
        for wire in self._wires.values():
            wire.send(do="stop")
        self._crew.stop()
        waiting, deadline = set(self._wires), time.monotonic() + FAILED_GRACE + 10
        while (waiting & set(self._wires)) and (remaining := deadline - time.monotonic()) > 0:
            event = self._next(remaining)
            if isinstance(event, Stopped):
                waiting.discard(event.node)
        while self._next(0) is not None:  # drop the events of stopped processes
            pass

    # --- the other machines -----------------------------------------------------------------

    def _next(self, seconds: float) -> Any:
        """Return the next event, if there is one in time."""
        try:
            event = self._events.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            return None
        if isinstance(event, Joined):
            self._admit(event)
        elif isinstance(event, Lost):
            if self._wires.get(event.node) is not event.wire:
                return self._next(seconds)
            del self._wires[event.node]
        elif isinstance(event, Progressed):
            self._progressed = True
        elif isinstance(event, Paused):
            self._note_paused(event)
        return event

    def _note_paused(self, event: Paused) -> None:
        subject = f"process {event.process} on {event.host}"
        if event.continued:
            self._paused.pop(event.process, None)
            self._output.say(f"{subject} was continued")
        else:
            self._paused[event.process] = event.host
            self._output.say(f"{subject} was stopped by a signal; the others wait for it")

    def _await_nodes(self) -> None:
        """Wait until the launchers of all machines have joined."""
        deadline = time.monotonic() + self._job.timeout
        reported = False
        while len(self._wires) < self._job.nodes - 1 and self._signal is None:
            missing = [k for k in range(1, self._job.nodes) if k not in self._wires]
            names = ", ".join(map(str, missing))
            if time.monotonic() > deadline:
                raise ShardwiseError(
                    f"machine {names} did not join within {self._job.timeout:g} s.",
                    where=f"shardwise launch --nodes {self._job.nodes}",
                    rule="The launcher is started on every machine, each with a different --node.",
                    remedy="look at the launcher there; check the address, the port and "
                    "firewalls; --timeout waits longer.",
                )
            if not reported:
                reported = True
                self._output.say(f"waiting for machine {names}")
            event = self._next(0.5)
            if isinstance(event, Signalled):
                self._signal = event.number

    def _admit(self, joined: Joined) -> None:
        signature, hello = self._job.signature(), joined.hello
        problems = [
            f"{name} is {value} on machine 0 and {_text(hello['signature'].get(name))} on machine "
            f"{joined.node}."
            for name, value in signature.items()
            if hello["signature"].get(name) != value
        ]
        if joined.node in self._wires:
            problems.append(f"there is a launcher with --node {joined.node} already.")
        if not 0 < joined.node < self._job.nodes:
            problems.append(f"there is no machine {joined.node} of {self._job.nodes}.")
        if problems:
            self._output.say(f"refused: {problems[0]}")
            joined.wire.send(do="refuse", words=problems[0])
            joined.wire.close()
            return
        self._wires[joined.node] = joined.wire
        self._sizes[joined.node] = hello["processes"]
        joined.wire.listen(
            lambda message: self._events.put(from_message(message)),
            lambda reason: self._events.put(Lost(joined.node, joined.wire, reason)),
        )


def _text(value: Any) -> str:
    """Return a value that another launcher sent, safe to print, without quotes."""
    return shown(str(value), 200)[1:-1]


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]

"""`connect`: the first line of a script that may run as one process of many."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ... import _jax
from ..._base.calls import public
from ..._base.errors import ShardwiseError, hide_reported
from ..._base.version import __version__
from ..._jax.failures import is_duplicate_process, is_join_timeout
from . import others, signals
from .find import Seat, find_seat

HEARTBEAT = 10
TIMEOUT = 300


@dataclass(frozen=True)
class Connection:
    """The place of this process in its job.

    Attributes:
        process: Its number, from 0.
        processes: How many there are.
        how: How they were started: `alone`, `shardwise launch`, `slurm`, `ompi`, `k8s`, ...
        hosts: The host of each process.
    """

    process: int
    processes: int
    how: str
    hosts: tuple[str, ...]

    @property
    def first(self) -> bool:
        """Whether this is process 0, which prints and writes for all."""
        return self.process == 0

    def __str__(self) -> str:
        if self.processes == 1:
            return "one process, alone"
        hosts = sorted({*self.hosts}, key=self.hosts.index)
        head = f"process {self.process} of {self.processes} ({self.how})"
        if len(hosts) == 1:
            return f"{head}, all on {hosts[0]}"
        counts = ", ".join(f"{self.hosts.count(host)} on {host}" for host in hosts[:8])
        rest = f" and {len(hosts) - 8} further hosts" if len(hosts) > 8 else ""
        return f"{head}; processes per host: {counts}{rest}"


_connection: Connection | None = None


@public("sw.connect", more="sw.connect(coordinator, processes=2, process=0)")
def connect(
    coordinator: str | None = None,
    *,
    processes: int | None = None,
    process: int | None = None,
    heartbeat: float = HEARTBEAT,
    timeout: float | None = None,
) -> Connection:
    """Join the other processes of the job, if there are any. The first line of a script.

    Alone it does nothing. Under `shardwise launch`, Slurm (`srun`), Open MPI (`mpirun`) or
    Kubernetes it joins the others with `jax.distributed`, and `sw.evaluate`, `sw.data_parallel` and
    `sw.fit` then use the devices of all. Process 0 prints one line with the processes per host on
    standard error.

    Args:
        coordinator: `HOST:PORT` of process 0, if no launcher or scheduler sets it.
        processes: The number of processes; required together with `coordinator` and `process`.
        process: The number of this process, from 0.
        heartbeat: Seconds without a heartbeat after which a process counts as dead.
        timeout: Seconds to wait for the others, by default 300, or the timeout of `shardwise
            launch`.

    Returns:
        The number of this process and the number of all processes.

    Raises:
        ShardwiseError: The environment is incomplete, the port is in use, the others do not join,
            or they run another version of JAX or another script.

    Example:
        >>> import shardwise as sw
        >>> print(sw.connect())
        one process, alone
    """
    global _connection
    if _connection is not None:
        return _connection
    patience = os.environ.get("SHARDWISE_TIMEOUT", TIMEOUT) if timeout is None else timeout
    limit = _whole_seconds("timeout", patience, TIMEOUT)
    beat = _whole_seconds("heartbeat", heartbeat, HEARTBEAT)
    how = "jax.distributed"
    if _jax.distributed_client() is None:
        seat = find_seat(coordinator, processes, process, limit)
        if seat is None:
            return Connection(0, 1, "alone", (socket.gethostname(),))
        _join(seat, beat, limit)
        how = seat.how
    _connection = _introduce(how)
    _report_failures()
    # Enumerating the devices waits for all processes.
    with others.together("sw.connect"):
        jax.devices()
    if _connection.first:
        devices = f"{jax.device_count()} {jax.devices()[0].platform} devices"
        print(f"shardwise: {_connection}; {devices}", file=sys.stderr, flush=True)
    return _connection


def _whole_seconds(name: str, value: Any, default: int) -> int:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 1 <= seconds < math.inf:
        raise ShardwiseError(
            f"it is {value!r}.",
            where=f"argument {name!r}",
            rule="It is a number of seconds, at least 1.",
            remedy=f"{name}={default}",
        )
    return math.ceil(seconds)


def _join(seat: Seat, heartbeat: int, limit: int) -> None:
    if _jax.backends_have_started():
        raise ShardwiseError(
            "JAX has already initialized its devices.",
            where="sw.connect",
            rule="Processes join before the first use of devices: an array, jax.devices(), a key.",
            remedy="call sw.connect() right after the imports.",
        )
    if seat.process == 0:
        _refuse_taken(seat)
    else:
        _await_coordinator(seat, limit)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        with signals.interrupted_at_once():
            jax.distributed.initialize(
                seat.coordinator,
                seat.processes,
                seat.process,
                local_device_ids=seat.local_devices,
                cluster_detection_method="deactivate",
                initialization_timeout=limit,
                heartbeat_timeout_seconds=heartbeat,
            )
    except Exception as error:
        raise _not_joined(seat, limit, error) from error
    if threading.current_thread() is threading.main_thread():
        signals.keep_notifier(handler)


def _refuse_taken(seat: Seat) -> None:
    """Raise if the port is in use: JAX's server would share it with another job."""
    host, _, port = seat.coordinator.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise ShardwiseError(
                f"port {port} cannot be used on {socket.gethostname()}: {error.strerror}.",
                where=f"the first process ({seat.how}, {seat.coordinator})",
                rule="The first process listens there for the others.",
                remedy="end the job that uses it, or choose another port: "
                f"sw.connect('{host}:PORT', ...), JAX_COORDINATOR_PORT under a scheduler.",
            ) from None


def _await_coordinator(seat: Seat, limit: int) -> None:
    """Wait until process 0 listens; report the reason while it does not."""
    host, _, port = seat.coordinator.rpartition(":")
    started = reported = time.monotonic()
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
                return
        except OSError as error:
            reason = error.strerror or str(error)
        now = time.monotonic()
        if now - started > limit:
            raise ShardwiseError(
                f"no answer in {limit} s: {reason}.",
                where=f"the first process at {seat.coordinator} ({seat.how})",
                rule="Process 0 listens there as soon as it calls sw.connect().",
                remedy="look at the log of process 0; check the name, the port and firewalls; "
                "a cold start of many machines needs a larger timeout=.",
            )
        if now - reported > 15:
            reported = now
            print(
                f"shardwise: process {seat.process} waits for process 0 at {seat.coordinator}: "
                f"{reason}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(0.1)


def _not_joined(seat: Seat, limit: int, error: Exception) -> ShardwiseError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    problem = (
        f"not all of the {seat.processes} processes joined within {limit} s"
        if is_join_timeout(error)
        else f"another process {seat.process} has joined already"
        if is_duplicate_process(error)
        else lines[0]
    )
    return ShardwiseError(
        f"{problem}.\n    " + "\n    ".join(lines[:6]),
        where=f"process {seat.process} of {seat.processes} ({seat.how}, {seat.coordinator})",
        rule="All processes join once, with the same address and the same number of them.",
        remedy="look at the log of the process that is missing; a cold start of many machines "
        "needs a larger timeout=.",
    )


def _introduce(how: str) -> Connection:
    """Exchange host, versions and script; raise if the processes differ."""
    facts = {
        "host": socket.gethostname(),
        "JAX": jax.__version__,
        "shardwise": __version__,
        "the script": _script(),
        "address": _address(),
    }
    collected = others.collect(facts, "connect")
    verdict = None if collected is None else _compare(collected)
    comparison = others.spread(verdict, "connect")
    if comparison["wrong"]:
        error = ShardwiseError(
            comparison["wrong"][0],
            where="sw.connect",
            rule="All processes of a job run the same script with the same versions.",
            remedy="install the same environment and copy the same script to every machine.",
        )
        _jax.leave_distributed()
        raise error
    for note in comparison["notes"] if others.is_first() else ():
        print(f"shardwise: {note}", file=sys.stderr, flush=True)
    return Connection(others.index(), others.count(), how, tuple(comparison["hosts"]))


def _compare(reports: list[dict[str, Any]]) -> dict[str, Any]:
    first, problems, notes = reports[0], [], []
    for key in ("JAX", "shardwise", "the script"):
        other = next((k for k, facts in enumerate(reports) if facts[key] != first[key]), None)
        if other is not None:
            problems.append(
                f"process 0 on {first['host']} has {key} {first[key]}, process {other} on "
                f"{reports[other]['host']} has {reports[other][key]}."
            )
    hidden = [facts for facts in reports if facts.get("address", "").startswith("127.")]
    if hidden and len({facts["host"] for facts in reports}) > 1:
        notes.append(
            f"the name {hidden[0]['host']} resolves to {hidden[0]['address']} on that host, where "
            "others cannot reach it: collectives on CPU will fail. Set its address in /etc/hosts"
        )
    return {"wrong": problems, "notes": notes, "hosts": [facts["host"] for facts in reports]}


def _address() -> str:
    """Return the address of this host's name, which gloo announces to the others."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _script() -> str:
    """Return the script by its name and a digest of its text, where it is a file."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    if path is None or not path.is_file():
        return "(none)"
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _report_failures() -> None:
    """Report an uncaught error to the others, and do not wait for them at exit."""
    hide_reported()
    news, earlier_hook = others.news(), sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        earlier_hook(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):
            news.fail(others.describe_failure(error))
        else:
            news.fail(f"process {others.index()} was interrupted")

    sys.excepthook = hook

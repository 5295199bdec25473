"""The port of the first launcher: admit launchers of this job, report and reject others."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import Any

from ..._base.errors import ShardwiseError
from .events import Joined
from .handshake import VARIABLE, RejectedError, admit
from .job import Job
from .output import Output
from .wire import SILENCE, Wire

AT_ONCE = 64
"""The maximum number of simultaneous handshakes."""

LINES = 50
"""The maximum number of reported rejections; each address and reason is reported once."""


class Listener:
    """Listens for launchers, and posts `Joined` for each launcher of this job.

    Args:
        job: The job, with the address and the secret.
        events: The queue for events.
        output: The output, for reports about rejected connections.
    """

    def __init__(self, job: Job, events: queue.SimpleQueue[Any], output: Output) -> None:
        self._job, self._events, self._output = job, events, output
        self._places = threading.Semaphore(AT_ONCE)
        self._reported: set[tuple[str, str]] = set()
        self._socket = self._listen()
        if not job.secret:
            output.say(
                f"no job secret: whoever reaches {job.coordinator[0]}:{job.coordinator[1]} can "
                f"join (--secret-file, {VARIABLE})"
            )
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._socket.getsockname()[1]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def _listen(self) -> socket.socket:
        host, port = self._job.coordinator
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise ShardwiseError(
                f"{error.strerror or error}.",
                where=f"--coordinator {host}:{port}",
                rule="The launcher of machine 0 listens there: on an address of this machine "
                "and an unused port.",
                remedy="end the other launcher, or choose another port on all machines.",
            ) from None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, address = self._socket.accept()
                self._places.acquire()
                threading.Thread(
                    target=self._greet, args=(connection, str(address[0])), daemon=True
                ).start()

    def _greet(self, connection: socket.socket, host: str) -> None:
        wire = Wire(connection)
        timer = threading.Timer(SILENCE, wire.close)  # for a client that sends single bytes
        timer.daemon = True
        timer.start()
        try:
            hello = admit(wire, self._job.secret)
            self._events.put(Joined(hello["node"], wire, hello))
        except RejectedError as error:
            self._report(host, str(error))
            wire.close()
        except OSError:
            wire.close()  # it disconnected, or sent nothing
        finally:
            timer.cancel()
            self._places.release()

    def _report(self, host: str, why: str) -> None:
        if (host, why) in self._reported or len(self._reported) >= LINES:
            return
        self._reported.add((host, why))
        self._output.say(f"rejected a connection from {host}: {why}")

"""Messages between two launchers: lines of JSON over TCP, with signs of life in between."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

SIGN = 1.0
"""Seconds between two signs of life."""

SILENCE = 8.0
"""Seconds without any, after which the other side is taken for gone."""


class Wire:
    """One connection; `listen` gives its messages to a function, `lost` its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(SILENCE)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._lines = connection.makefile("r", encoding="utf-8")

    def send(self, **message: Any) -> None:
        """Send a message; a connection that is gone is noticed by whoever listens."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> dict[str, Any]:
        """The next message; raises OSError or ValueError where there is none."""
        while True:
            line = self._lines.readline()
            if not line.endswith("\n"):
                raise ConnectionError("the connection was closed")
            message = json.loads(line)
            if message != {}:
                return message

    def listen(self, told: Callable[[dict[str, Any]], None], lost: Callable[[str], None]) -> None:
        """Give messages on, in a thread, until the connection is gone; send signs of life."""

        def read() -> None:
            try:
                while True:
                    told(self.receive())
            except TimeoutError:
                lost(f"no sign of life for {SILENCE:g} s")
            except (OSError, ValueError) as error:
                lost(str(error))
            self.close()

        for work in (read, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def _beat(self) -> None:
        while not self._closed.wait(SIGN):
            self.send()

    def close(self) -> None:
        """Hang up."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()


def dial(address: tuple[str, int], limit: float, stop: Callable[[], bool]) -> Wire | str:
    """Connect to the first launcher, as soon as it listens; or why not.

    Args:
        address: Where it listens.
        limit: Seconds to try.
        stop: Whether to give up.
    """
    until, reason = time.monotonic() + limit, "it was not tried"
    while time.monotonic() < until and not stop():
        try:
            return Wire(socket.create_connection(address, timeout=5))
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.2)
    return reason

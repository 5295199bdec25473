"""Messages between two launchers: lines of JSON over TCP, with signs of life in between.

Once the handshake (`handshake.py`) has agreed on a key, every line begins with a code computed from
the key, the direction, the number of the message and its text. A line that somebody else wrote, or
that was repeated or left out, does not fit, and ends the connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
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

LONGEST = 1 << 20
"""Bytes of the longest message."""


class Wire:
    """One connection; `listen` passes its messages to a function, `lost` its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(SILENCE)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._lines = connection.makefile("rb")
        self._sending = self._receiving = Code()

    def secure(self, key: bytes, sends: str, receives: str) -> None:
        """Authenticate every message from here on."""
        self._sending, self._receiving = Code(key, sends), Code(key, receives)

    def send(self, **message: Any) -> None:
        """Send a message; a connection that is gone is noticed by whoever listens."""
        text = json.dumps(message).encode()
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(self._sending.next(text) + text + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise OSError or ValueError where there is none."""
        while True:
            line = self._lines.readline(LONGEST)
            if not line:
                raise ConnectionError("the connection was closed")
            if not line.endswith(b"\n"):
                raise ValueError(f"it sent {shown(line)}, which is cut off")
            message = _parse(self._receiving.remove(line[:-1]))
            if message:
                return message

    def listen(
        self, received: Callable[[dict[str, Any]], None], lost: Callable[[str], None]
    ) -> None:
        """Pass messages on, in a thread, until the connection is gone; send signs of life."""

        def read() -> None:
            try:
                while True:
                    received(self.receive())
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
        for end in (self._lines, self._socket):
            with contextlib.suppress(OSError):
                end.close()


class Code:
    """The authentication codes of the messages in one direction; none without a key."""

    def __init__(self, key: bytes = b"", direction: str = "") -> None:
        self._key, self._direction, self._count = key, direction, 0

    def next(self, text: bytes) -> bytes:
        """Return what goes before the next message."""
        if not self._key:
            return b""
        self._count += 1
        head = f"{self._direction} {self._count} ".encode()
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode() + b" "

    def remove(self, line: bytes) -> bytes:
        """Return the text of the next message; raise ValueError if its code does not fit."""
        code, text = line[:65], line[65:] if self._key else line
        if self._key and not hmac.compare_digest(code, self.next(text)):
            raise ValueError(f"it sent {shown(line)}, which no launcher of this job has written")
        return text


def _parse(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ValueError(f"it sent {shown(text)}, which is no message of shardwise launch")
    return message


def shown(data: bytes | str, most: int = 60) -> str:
    """Return data that came from outside as it may be printed: quoted, escaped, not too long."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = text.rstrip("\r\n")
    return ascii(text if len(text) <= most else f"{text[:most]}...")


def dial(address: tuple[str, int], limit: float, stop: Callable[[], bool]) -> Wire | str:
    """Connect to the first launcher, as soon as it listens; or return why not.

    Args:
        address: Where it listens.
        limit: Seconds to try.
        stop: Whether to give up.
    """
    deadline, reason = time.monotonic() + limit, "it was not tried"
    while time.monotonic() < deadline and not stop():
        try:
            return Wire(socket.create_connection(address, timeout=5))
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.2)
    return reason

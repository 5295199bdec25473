"""Messages between two launchers: lines of JSON over TCP, with heartbeats in between.

After the handshake (`handshake.py`) has agreed on a key, every line begins with an authentication
code of the key, the direction, the number of the message and its text. A forged, repeated or
missing line does not match, and ends the connection.
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

HEARTBEAT = 1.0
"""Seconds between two heartbeats."""

SILENCE = 8.0
"""Seconds without a message after which the connection counts as lost."""

LONGEST = 1 << 20
"""The maximum size of a message in bytes."""


class Wire:
    """A connection between two launchers."""

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
        """Send a message; a lost connection is reported by `listen`."""
        text = json.dumps(message).encode()
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(self._sending.next(text) + text + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise OSError or ValueError if there is none."""
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
        """Receive messages in a thread until the connection is lost; send heartbeats."""

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
        while not self._closed.wait(HEARTBEAT):
            self.send()

    def close(self) -> None:
        """Close the connection."""
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
        """Return the prefix of the next message."""
        if not self._key:
            return b""
        self._count += 1
        head = f"{self._direction} {self._count} ".encode()
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode() + b" "

    def remove(self, line: bytes) -> bytes:
        """Return the text of the next message; raise ValueError if its code does not match."""
        code, text = line[:65], line[65:] if self._key else line
        if self._key and not hmac.compare_digest(code, self.next(text)):
            raise ValueError(f"it sent {shown(line)}, which is not from a launcher of this job")
        return text


def _parse(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ValueError(f"it sent {shown(text)}, which is not a message of shardwise launch")
    return message


def shown(data: bytes | str, most: int = 60) -> str:
    """Return untrusted data safe to print: quoted, escaped and truncated."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = text.rstrip("\r\n")
    return ascii(text if len(text) <= most else f"{text[:most]}...")


def dial(address: tuple[str, int], limit: float, stop: Callable[[], bool]) -> Wire | str:
    """Connect to the first launcher as soon as it listens; return the reason if that fails.

    Args:
        address: The address on which it listens.
        limit: Seconds to try.
        stop: Returns whether to give up.
    """
    deadline, reason = time.monotonic() + limit, "it was not tried"
    while time.monotonic() < deadline and not stop():
        try:
            return Wire(socket.create_connection(address, timeout=5))
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.2)
    return reason

"""The compiling process: started by `worker`, ends when the connection to it is closed.

It compiles one module after the other, each into a folder that the caller made. A thread reads the
requests, so that the process ends with its parent even while it is compiling.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve the requests that come through the file descriptor on the command line."""
    connection = Connection(int(sys.argv[1]))
    pending: queue.Queue[tuple[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(connection, pending), daemon=True).start()
    while True:
        connection.send(_compile(*pending.get()))


def _read(connection: Connection, pending: queue.Queue[tuple[str, Any]]) -> None:
    while True:
        try:
            pending.put(connection.recv())
        except (EOFError, ConnectionError):
            os._exit(0)


def _compile(folder: str, lowered: Any) -> str:
    """Compile one module into a folder; return the compiler's error, or an empty string."""
    from ..._jax.compiling import compile_into

    with _logging_to(Path(folder, "log")):
        try:
            compile_into(folder, lowered)
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"
    return ""


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Redirect the compiler's log, which goes to file descriptor 2, to a file."""
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)

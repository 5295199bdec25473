"""The compiling process: started by `worker`, ends when its standard input is closed.

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
from pathlib import Path
from typing import BinaryIO

from .messages import CompileRequest, receive, send


def main() -> None:
    """Serve requests until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not mix with the answers
    pending: queue.Queue[CompileRequest] = queue.Queue()
    threading.Thread(target=_read, args=(requests, pending), daemon=True).start()
    while True:
        send(answers, _compile(pending.get()))


def _read(requests: BinaryIO, pending: queue.Queue[CompileRequest]) -> None:

    while True:
        try:
            pending.put(receive(requests))
        except EOFError:
            os._exit(0)


def _compile(request: CompileRequest) -> str:
    """Compile one module; return the compiler's error, or an empty string."""
    from ..._jax.compiling import compile_into

    with _logging_to(Path(request.folder, "log")):
        try:
            compile_into(request.folder, request.lowered)
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

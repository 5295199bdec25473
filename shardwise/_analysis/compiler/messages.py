"""The messages between the two processes: pickled objects, each preceded by its length."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class CompileRequest:
    """A module to compile, and the folder for the compiler's output."""

    folder: str
    lowered: Any
    """A `_jax.compiling.Lowered`."""


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message; raise `EOFError` if the other side has closed the stream."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data

"""What the two processes send each other: pickled objects, each with its length in front."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class Request:
    """A module to compile, and the folder that takes what the compiler leaves."""

    folder: str
    lowered: Any
    """A `_jax.compiling.Lowered`."""
    narrow: bool
    """Whether low-precision types are left as they are."""


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message; raise `EOFError` where the other side has ended."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data

"""The events that launchers, and the threads of a launcher, report."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exited:
    """A process ended. `code` is negative for a signal; `words` end its standard error."""

    process: int
    host: str
    code: int
    words: str


@dataclass(frozen=True)
class Reported:
    """A process reports why it fails and its exit code; `peer` if another process failed first.

    `left` is a process that it waits for although that process has ended its script.
    """

    process: int
    host: str
    code: int
    words: str
    peer: bool
    left: str = ""


@dataclass(frozen=True)
class Ended:
    """A process reached the end of its script; it may still wait for others there."""

    process: int
    host: str


@dataclass(frozen=True)
class Paused:
    """A process was stopped by a signal (SIGSTOP), or continued."""

    process: int
    host: str
    continued: bool = False


@dataclass(frozen=True)
class Progressed:
    """A process stored a checkpoint: the attempt made progress."""

    process: int
    host: str


OfProcess = Exited | Reported | Ended | Paused | Progressed
"""The events of a process."""


@dataclass(frozen=True)
class Signalled:
    """A launcher received a signal."""

    number: int


@dataclass(frozen=True)
class Stopped:
    """The launcher of another machine has stopped its processes, as ordered."""

    node: int


@dataclass(frozen=True)
class Joined:
    """The launcher of another machine joined."""

    node: int
    wire: Any
    hello: dict[str, Any]


@dataclass(frozen=True)
class Lost:
    """The launcher of another machine is gone, or cannot be reached."""

    node: int
    wire: Any
    why: str


@dataclass(frozen=True)
class Order:
    """An order of the first launcher."""

    order: dict[str, Any]


_KINDS = {
    kind.__name__.lower(): kind
    for kind in (Exited, Reported, Ended, Paused, Progressed, Signalled, Stopped)
}


def to_message(event: Any) -> dict[str, Any]:
    """Return an event as a message to another launcher."""
    return {"say": type(event).__name__.lower(), **dataclasses.asdict(event)}


def from_message(message: dict[str, Any]) -> Any:
    """Return the event in a message.

    Raises:
        ValueError: Its fields are not those of an event.
    """
    name, values = message.get("say"), {k: v for k, v in message.items() if k != "say"}
    kind = _KINDS.get(str(name))
    if kind is None:
        raise ValueError(f"its message {name!r:.40} is not known")
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    for field, value in values.items():
        if types.get(field) != type(value).__name__:
            raise ValueError(f"its message {name!r} has another {field!r:.40}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"its message {name!r} is not complete: {error}") from None


def describe_exit(code: int) -> str:
    """Return a description of an exit code."""
    if code in _ENDED:
        return f"it was ended by {signal.Signals(code - 128).name} (exit code {code})"
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGKILL": ", which the program cannot catch (possibly out of memory)",
        "SIGSEGV": ", a crash in native code",
        "SIGBUS": ", possibly a file that shrank while it was mapped",
        "SIGABRT": ", an abort in native code: JAX aborts when it loses the other processes",
    }.get(name, "")
    return f"killed by {name}{hint}"


_ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def exit_code(code: int) -> int:
    """Return the exit code that a shell would report: 128 plus the signal."""
    return 128 - code if code < 0 else code

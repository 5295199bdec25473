"""Events: what launchers report to each other, and their threads to them."""

from __future__ import annotations

import dataclasses
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Exited:
    """A process has ended. `code` is negative for a signal; `words` are the end of its output."""

    process: int
    host: str
    code: int
    words: str


@dataclass(frozen=True)
class Reported:
    """A process says why it fails, and how it will exit; `peer`: because another one did.

    `left` is the process that it waits for although that process has ended its script.
    """

    process: int
    host: str
    code: int
    words: str
    peer: bool
    left: str = ""


@dataclass(frozen=True)
class Ended:
    """A process has come to the end of its script; it may still wait for the others there."""

    process: int
    host: str


@dataclass(frozen=True)
class Paused:
    """A process was stopped by a signal, or continued: it is there and does nothing."""

    process: int
    host: str
    continued: bool = False


@dataclass(frozen=True)
class Progressed:
    """A process has stored something: the attempt made progress."""


@dataclass(frozen=True)
class Signalled:
    """A launcher was sent a signal."""

    number: int


@dataclass(frozen=True)
class Joined:
    """The launcher of another machine has come."""

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
class Message:
    """A message from another launcher."""

    node: int
    message: dict[str, Any]


_SAID = {
    "exited": Exited,
    "reported": Reported,
    "ended": Ended,
    "paused": Paused,
    "signal": Signalled,
}


def to_message(event: Any) -> dict[str, Any]:
    """Return an event as a message to another launcher."""
    (name,) = (name for name, kind in _SAID.items() if isinstance(event, kind))
    return {"say": name, **dataclasses.asdict(event)}


def from_message(message: dict[str, Any]) -> Any:
    """Return the event in a message, or None if it is an answer and no event.

    Raises:
        ValueError: It has other fields than the event.
    """
    kind = _SAID.get(str(message.get("say")))
    if kind is None:
        return None
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {name: value for name, value in message.items() if name != "say"}
    for name, value in values.items():
        if name not in fields or type(value).__name__ != fields[name].type:
            raise ValueError(f"its message {message['say']!r} has another {name!r:.40}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"its message {message['say']!r} is not complete: {error}") from None


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
        "SIGKILL": ", which nothing in the program can catch (out of memory, perhaps)",
        "SIGSEGV": ", a crash in native code",
        "SIGBUS": ", a file that shrank while it was mapped, perhaps",
        "SIGABRT": ", by native code that gave up: JAX does so when it loses the others",
    }.get(name, "")
    return f"killed by {name}{hint}"


_ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)


def exit_code(code: int) -> int:
    """As a shell counts them: 128 and the signal."""
    return 128 - code if code < 0 else code

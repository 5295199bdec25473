"""The exceptions.

Every message states the place, the problem, the rule that it breaks and the remedy, in that order.
The exceptions take these as arguments.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any


class ShardwiseError(Exception):
    """The base class of the errors of shardwise.

    Args:
        what: The problem, as a sentence.
        where: The place, such as `train.py:31` or `argument 'x'`.
        rule: The rule that was broken, as a sentence.
        remedy: What to do, as a sentence or as code.
    """

    def __init__(self, what: str, *, where: str = "", rule: str = "", remedy: str = "") -> None:
        super().__init__(explain_error(what, where=where, rule=rule, remedy=remedy))


class DeadlockError(ShardwiseError, RuntimeError):
    """Some devices wait in a collective that others never reach.

    On a real mesh such a program hangs, or is aborted without an explanation.
    """


class ShardingError(ShardwiseError, ValueError):
    """A mesh, a spec or an array does not fit the others."""


class ArgumentError(ShardwiseError, TypeError):
    """An argument has an unsupported type."""


class UnknownNameError(ShardwiseError, KeyError):
    """No object has the requested name."""

    __str__ = Exception.__str__  # a KeyError shows the message in quotes


class MissingPackageError(ShardwiseError, ImportError):
    """A feature needs a package that is not installed: Flax, optax or Orbax."""


class UnsupportedError(ShardwiseError, NotImplementedError):
    """The program uses something that the simulator does not support."""


class PeerError(ShardwiseError, RuntimeError):
    """Another process of the same job failed or is gone; the message quotes its error."""


def interrupted(line: str) -> KeyboardInterrupt:
    """Return the exception for Ctrl-C after a message has reported what was saved.

    It is not a subclass: for a subclass, Python's exit code would not report the signal.
    """
    error = KeyboardInterrupt(line)
    vars(error)[_REPORTED] = True
    hide_reported()
    return error


_REPORTED = "_shardwise_reported"


def is_reported(error: BaseException) -> bool:
    """Return whether a message has already reported what was saved."""
    return isinstance(error, KeyboardInterrupt) and _REPORTED in vars(error)


def hide_reported() -> None:
    """Let a script that a reported Ctrl-C ends print no traceback, unless it has a hook itself."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_unless_reported


def _print_unless_reported(kind: Any, error: Any, trace: Any) -> None:
    if not is_reported(error):
        sys.__excepthook__(kind, error, trace)


def text_of(error: BaseException) -> str:
    """Return the text of an error, also where the `__str__` of a user's exception fails."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "<exception str() failed>"


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, unless its class overrides `add_note` and fails."""
    with contextlib.suppress(Exception):
        error.add_note(text)


def notes_of(error: BaseException, prefix: str) -> list[str]:
    """Return the notes of an error that start with a prefix, without it."""
    try:
        notes = [text for text in error.__notes__ if isinstance(text, str)]
    except Exception:
        return []
    return [text.removeprefix(prefix) for text in notes if text.startswith(prefix)]


def prefix(folder: Path) -> str:
    """Return the prefix of the paths of all files in a folder, but not of those in `folder-2`."""
    return os.path.join(folder, "")


def _users_frame() -> tuple[FrameType | None, int]:
    """Return the frame of the user that called shardwise, and how far up it is."""
    package, frame, level = prefix(Path(__file__).parents[1]), sys._getframe(1), 1
    while frame is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return frame, level


def caller() -> str:
    """Return the user's line that called shardwise, as `train.py:12`; "" if there is none."""
    frame, _ = _users_frame()
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def warn(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the user's line that called shardwise, however deep the call is."""
    warnings.warn(message, kind, stacklevel=_users_frame()[1])


def require(package: str, what: str) -> None:
    """Raise unless a package that comes with `shardwise[flax]` is installed.

    Args:
        package: Its name. The package is looked up, not imported.
        what: The feature that needs it.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        installed = package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        installed = False
    if not installed:
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed",
            rule="Flax, optax and Orbax come with the extra 'flax'; all else works without.",
            remedy="pip install 'shardwise[flax]'",
        )


def refuse_progress(progress: Any, report: str) -> None:
    """Raise if the argument `progress` has an unsupported type; a function is passed a `report`.

    Raises:
        ArgumentError: It is neither True, False, None nor a function.
    """
    if progress is None or isinstance(progress, bool) or callable(progress):
        return
    raise ArgumentError(
        f"progress is {a_type(progress)}",
        where="progress=",
        rule=f"It is True, False, None or a function that takes {report}.",
        remedy="progress=print",
    )


def path_of(value: Any, where: str) -> Path:
    """Return a file or folder that an argument names.

    Raises:
        ArgumentError: It is not a path.
    """
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            return Path(path)
    raise ArgumentError(
        f"the path is {value!r}",
        where=where,
        rule="A path is a string or a pathlib.Path, and not empty.",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` while a file named by an argument is written into a clear error.

    Raises:
        ShardwiseError: The folder does not exist, is read-only or full, or the path is a folder.
    """
    try:
        yield
    except OSError as error:
        raise ShardwiseError(
            f"it cannot be written ({error.strerror})",
            where=str(path),
            remedy="name a file in an existing, writable folder with free space.",
        ) from error


@contextlib.contextmanager
def noting(what: str) -> Iterator[None]:
    """Add a note to a user's error about what was running; errors of shardwise stay as they are."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, ShardwiseError):
            note(error, f"shardwise: while {what}")
        raise


def a_type(value: object) -> str:
    """Return the type of a value with its article: `an int`, `a str`; `an array` for a
    `jax.Array`."""
    name = type(value).__name__
    if name == "ArrayImpl":
        return "an array"
    vowel = name[0].lower() in "aeiou" or name == "ndarray"
    return f"{'an' if vowel else 'a'} {name}"


def name_of(f: Any) -> str:
    """Return the name of a function, also inside `functools.partial`."""
    inner = getattr(f, "func", f)
    return getattr(inner, "__name__", type(f).__name__)


SHOWN = 8
"""The maximum number of entries of a list in a message."""


def listed(entries: Sequence[str]) -> str:
    """Format entries as lines of a message; of many, the first ones."""
    remainder = [f"and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
    return "".join(f"\n    - {entry}" for entry in [*entries[:SHOWN], *remainder])


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a question with the most similar name, as a remedy; "" if none is similar."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {matches[0]!r}?" if matches else ""


def explain_error(what: str, *, where: str = "", rule: str = "", remedy: str = "") -> str:
    """Compose a message: place, problem, rule, remedy; empty parts are left out.

    Args:
        what: The problem, as a sentence.
        where: The place, such as `train.py:31` or `argument 'x'`.
        rule: The rule that was broken, as a sentence.
        remedy: What to do, as a sentence or as code.
    """
    head = f"{where}: {what}" if where else what
    parts = [head, rule, f"Remedy: {remedy}" if remedy else ""]
    return "\n  ".join(part for part in parts if part)

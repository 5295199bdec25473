"""The exceptions.

Every message of shardwise says where it happened, what was found, which rule that breaks and what
to do about it, in that order. The exceptions take these as arguments, so that messages look alike.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class ShardwiseError(Exception):
    """The base class of all errors that shardwise raises on purpose.

    Args:
        what: What was found, as a sentence.
        where: The place, such as `train.py:31` or `argument 'x'`.
        rule: The rule that was broken, as a sentence.
        remedy: What to do, as a sentence or as code.
    """

    def __init__(self, what: str, *, where: str = "", rule: str = "", remedy: str = "") -> None:
        super().__init__(explain_error(what, where=where, rule=rule, remedy=remedy))


class DeadlockError(ShardwiseError, RuntimeError):
    """Some devices wait in a collective that others never reach.

    On a real mesh such a program hangs, or is aborted without a word about the cause.
    """


class ShardingError(ShardwiseError, ValueError):
    """A mesh, a spec or an array does not fit the others."""


class ArgumentError(ShardwiseError, TypeError):
    """An argument is of a kind that is not taken."""


class UnknownNameError(ShardwiseError, KeyError):
    """Something was asked for by a name that is not there."""

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class MissingPackageError(ShardwiseError, ImportError):
    """Something needs a package that is not installed: Flax, optax or Orbax."""


class UnsupportedError(ShardwiseError, NotImplementedError):
    """The program uses something the simulator does not know. It never guesses."""


class PeerError(ShardwiseError, RuntimeError):
    """Another process of the same job has failed or gone; its words are in the message."""


def interrupted(line: str) -> KeyboardInterrupt:
    """Ctrl-C, after a line has said what was kept.

    It is no class of its own: of a subclass Python does not say, by its exit code, what ended it.
    """
    return KeyboardInterrupt(line)


def was_told(error: KeyboardInterrupt) -> bool:
    """Whether somebody has said already what was kept."""
    return bool(str(error))


def text_of(error: BaseException) -> str:
    """What an error says. One of the user's own may fail to say it, and is none the less his."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "<exception str() failed>"


def note(error: BaseException, text: str) -> None:
    """Say something beside an error, unless it has notes of another kind than Python's."""
    with contextlib.suppress(Exception):
        error.add_note(text)


def notes_of(error: BaseException, ours: str) -> list[str]:
    """What was said beside an error after the words `ours`."""
    try:
        notes = [one for one in error.__notes__ if isinstance(one, str)]
    except Exception:
        return []
    return [one.removeprefix(ours) for one in notes if one.startswith(ours)]


def prefix(folder: Path) -> str:
    """How the path of every file in a folder begins, and that of no file in `folder-2`."""
    return os.path.join(folder, "")


def caller() -> str:
    """The line of the user's that called us: `train.py:12`; nothing where there is none."""
    own, frame = prefix(Path(__file__).parents[1]), sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def warn(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that called us, however deep below it was found."""
    own, frame, level = prefix(Path(__file__).parents[1]), sys._getframe(1), 2
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def require(package: str, what: str) -> None:
    """Raise unless a package that comes with `shardwise[flax]` is installed.

    Args:
        package: Its name; it is looked for and not imported.
        what: What needs it.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        found = package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise MissingPackageError(
            f"{what} needs {package}, which is not installed",
            rule="Flax, optax and Orbax come with the extra 'flax'; all else works without.",
            remedy="pip install 'shardwise[flax]'",
        )


def refuse_progress(given: Any, what: str) -> None:
    """Refuse what the argument `progress` cannot be; `what` is what a function is given.

    Raises:
        ArgumentError: It is neither True, False, None nor a function.
    """
    if given is None or isinstance(given, bool) or callable(given):
        return
    raise ArgumentError(
        f"progress is {a_type(given)}",
        where="progress=",
        rule=f"It is True, False, None or a function that is given {what}.",
        remedy="progress=print",
    )


def path_of(given: Any, where: str) -> Path:
    """A file or folder that an argument names.

    Raises:
        ArgumentError: It is not a path.
    """
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        if isinstance(path, str) and path and "\0" not in path:
            return Path(path)
    raise ArgumentError(
        f"the path is {given!r}",
        where=where,
        rule="A path is a string or a pathlib.Path, and not empty.",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside, a file is written that an argument names; where it cannot be, it says so in words.

    Raises:
        ShardwiseError: The folder is not there, is read-only or full, or the path is a folder.
    """
    try:
        yield
    except OSError as error:
        raise ShardwiseError(
            f"it cannot be written ({error.strerror})",
            where=str(path),
            remedy="name a file in a folder that is there, may be written to and has room.",
        ) from error


@contextlib.contextmanager
def noting(what: str) -> Iterator[None]:
    """Say beside the user's own error what was being done when it came; ours say so themselves."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, ShardwiseError):
            note(error, f"shardwise: while {what}")
        raise


def a_type(value: object) -> str:
    """The type of a value with its article: `an int`, `a str`; `an array` for JAX's own."""
    name = type(value).__name__
    if name == "ArrayImpl":  # a name that nobody writes
        return "an array"
    vowel = name[0].lower() in "aeiou" or name == "ndarray"
    return f"{'an' if vowel else 'a'} {name}"


def name_of(f: Any) -> str:
    """What a function is called; one with arguments bound to it is called as before."""
    inner = getattr(f, "func", f)
    return getattr(inner, "__name__", type(f).__name__)


SHOWN = 8
"""How many entries of a list a message shows."""


def listed(entries: Sequence[str]) -> str:
    """Entries one below the other, as a part of a message; of many, the first ones."""
    more = [f"and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
    return "".join(f"\n    - {entry}" for entry in [*entries[:SHOWN], *more])


def explain_error(what: str, *, where: str = "", rule: str = "", remedy: str = "") -> str:
    """Word a message: where, what was found, the rule, the remedy; parts left out are left out.

    Args:
        what: What was found, as a sentence.
        where: The place, such as `train.py:31` or `argument 'x'`.
        rule: The rule that was broken, as a sentence.
        remedy: What to do, as a sentence or as code.
    """
    head = f"{where}: {what}" if where else what
    parts = [head, rule, f"Remedy: {remedy}" if remedy else ""]
    return "\n  ".join(part for part in parts if part)

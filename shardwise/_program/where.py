"""The source line in the user's code that an operation comes from."""

from __future__ import annotations

import dataclasses
import inspect
import linecache
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .. import _jax
from .._base.errors import prefix

_HERE = prefix(Path(__file__).parents[1])


@dataclasses.dataclass(frozen=True)
class Where:
    """A line of the user's program, and the library call it went through, if any."""

    file: str
    line: int
    function: str
    column: int = 0
    end_column: int = 0
    through: str = ""

    def __str__(self) -> str:
        via = f" (through {self.through})" if self.through else ""
        return f"{Path(self.file).name}:{self.line}{via}" if self.file else "an unknown line"

    @property
    def text(self) -> str:
        """Return the source line."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def excerpt(self) -> list[tuple[int, str]]:
        """Return the line and its neighbours, with numbers; missing lines are left out."""
        numbers = range(max(1, self.line - 2), self.line + 3) if self.file else ()
        lines = [(number, linecache.getline(self.file, number).rstrip("\n")) for number in numbers]
        return [(number, line) for number, line in lines if line or number == self.line]

    def to_dict(self) -> dict[str, Any]:
        """Return the place as plain data, with the text of the line."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "function": self.function,
            "text": self.text,
            "through": self.through,
        }


NOWHERE = Where("", 0, "")


def place_of(f: Callable[..., Any]) -> Where:
    """Return where a function is defined; `NOWHERE` if Python has no source for it."""
    inner = inspect.unwrap(f)
    inner = getattr(inner, "func", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        return NOWHERE
    return Where(code.co_filename, code.co_firstlineno, code.co_name)


def where_of(*sources: Any) -> Where:
    """Return the user's line of the first of these sources that has one."""
    locations = (choose(_jax.user_frames(source)) for source in sources if source is not None)
    return next((location for location in locations if location.file), NOWHERE)


class LazyWhere:
    """The user's line of the first source that has one, looked up when it is printed."""

    def __init__(self, *sources: Any):
        self.sources = sources

    def __str__(self) -> str:
        return str(where_of(*self.sources))


def anywhere(source: Any) -> Where:
    """Return the innermost frame outside JAX, even inside shardwise."""
    frame = next(_jax.user_frames(source), None) if source is not None else None
    return _where(frame, "") if frame else NOWHERE


def caller_of(source: Any, where: Where) -> Where | None:
    """Return the user's line that calls the function containing a line; None if there is none."""
    frames = list(_jax.user_frames(source)) if source is not None else []
    users = [frame for frame in frames if is_user_file(frame.file)]
    lines = [(frame.file, frame.line) for frame in users]
    line = (where.file, where.line)
    if line not in lines:
        return None
    rest = users[lines.index(line) + 1 :]
    caller = next((frame for frame in rest if (frame.file, frame.line) != line), None)
    return _where(caller, "") if caller else None


def derivatives_of(source: Any) -> list[tuple[str, Where]]:
    """Return the derivatives that an operation is computed for, innermost first.

    Each is the function of JAX, `grad` or `value_and_grad`, and the user's line that calls it,
    directly or through a library.
    """
    derivatives = _jax.derivative_frames(source) if source is not None else ()
    locations = ((name, choose(frames)) for name, frames in derivatives)
    return [(name, location) for name, location in locations if location.file]


def within(source: Any, function: str) -> bool:
    """Return whether an operation was traced inside a call of this function of JAX."""
    return source is not None and function in _jax.functions_around(source)


def is_user_file(file: str) -> bool:
    """Return whether a file belongs to the user, not to shardwise or an installed package."""
    return not file.startswith((_HERE, *_jax.LIBRARIES))


def choose(frames: Iterable[_jax.Frame]) -> Where:
    """Return the innermost frame outside installed packages, else the innermost of all."""
    inner = None
    for frame in frames:
        if frame.file.startswith(_HERE):
            continue
        if not frame.file.startswith(_jax.LIBRARIES):
            caller_name = f"{Path(inner.file).stem}.{inner.function}" if inner else ""
            return _where(frame, caller_name)
        inner = inner or frame
    return _where(inner, "") if inner else NOWHERE


def choose_compiled(frames: Iterable[_jax.Frame]) -> Where:
    """Apply `choose` to a compiled operation, whose frames include the call of shardwise."""
    return choose(_within_the_program(frames))


def caller_in(frames: Iterable[_jax.Frame], where: Where) -> Where:
    """Return the user's line that calls the function containing a compiled operation."""
    users = [
        frame for frame in _within_the_program(frames) if not frame.file.startswith(_jax.LIBRARIES)
    ]
    line = where.file, where.line
    callers = (
        frame
        for frame in users
        if (frame.file, frame.line) != line and not frame.file.startswith(_HERE)
    )
    caller = next(callers, None)
    return _where(caller, "") if caller else NOWHERE


def _within_the_program(frames: Iterable[_jax.Frame]) -> list[_jax.Frame]:
    """Return the frames inside the outermost one of shardwise, which traces the program."""
    frames = list(frames)
    indices = [index for index, frame in enumerate(frames) if frame.file.startswith(_HERE)]
    return frames[: indices[-1]] if indices else frames


def _where(frame: _jax.Frame, through: str) -> Where:
    return Where(frame.file, frame.line, frame.function, frame.column, frame.end_column, through)

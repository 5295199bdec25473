"""Source places: which line of the user's an operation comes from."""

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
    """A line of the user's program, and the library call it went through, where there is one."""

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
        """The source line itself."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def excerpt(self) -> list[tuple[int, str]]:
        """The line with its neighbours, numbered; lines that are not there are left out."""
        numbers = range(max(1, self.line - 2), self.line + 3) if self.file else ()
        lines = [(number, linecache.getline(self.file, number).rstrip("\n")) for number in numbers]
        return [(number, line) for number, line in lines if line or number == self.line]

    def to_dict(self) -> dict[str, Any]:
        """The place as plain data, with the text of the line."""
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
    """Where a function is defined; nowhere for one that Python knows no source of."""
    inner = inspect.unwrap(f)
    inner = getattr(inner, "func", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        return NOWHERE
    return Where(code.co_filename, code.co_firstlineno, code.co_name)


def where_of(*sources: Any) -> Where:
    """The line of the user's own code of the first of these sources that has one."""
    places = (choose(_jax.user_frames(source)) for source in sources if source is not None)
    return next((place for place in places if place.file), NOWHERE)


class LazyWhere:
    """The line of the first of some sources that has one, looked up once it is to be told."""

    def __init__(self, *sources: Any):
        self.sources = sources

    def __str__(self) -> str:
        return str(where_of(*self.sources))


def anywhere(source: Any) -> Where:
    """The innermost frame outside JAX, be it shardwise's own, where no line is the user's."""
    frame = next(_jax.user_frames(source), None) if source is not None else None
    return _where(frame, "") if frame else NOWHERE


def caller_of(source: Any, where: Where) -> Where | None:
    """The user's own line that called the function a line stands in; None if there is none."""
    frames = list(_jax.user_frames(source)) if source is not None else []
    own = [frame for frame in frames if is_user_file(frame.file)]
    lines = [(frame.file, frame.line) for frame in own]
    here = (where.file, where.line)
    if here not in lines:
        return None
    rest = own[lines.index(here) + 1 :]
    found = next((frame for frame in rest if (frame.file, frame.line) != here), None)
    return _where(found, "") if found else None


def derivatives_of(source: Any) -> list[tuple[str, Where]]:
    """The derivatives that an operation is made for, from the inside out.

    Of each the function of JAX, `grad` or `value_and_grad`, and the user's line that asked for it,
    also where a library calls it for him.
    """
    found = _jax.derivative_frames(source) if source is not None else ()
    places = ((name, choose(frames)) for name, frames in found)
    return [(name, place) for name, place in places if place.file]


def within(source: Any, function: str) -> bool:
    """Whether an operation was made inside a call of this function of JAX."""
    return source is not None and function in _jax.functions_around(source)


def is_user_file(file: str) -> bool:
    """Whether a file belongs to the user, and not to shardwise or to an installed package."""
    return not file.startswith((_HERE, *_jax.LIBRARIES))


def choose(frames: Iterable[_jax.Frame]) -> Where:
    """The innermost frame outside installed packages; failing that, the innermost of all."""
    inner = None
    for frame in frames:
        if frame.file.startswith(_HERE):
            continue
        if not frame.file.startswith(_jax.LIBRARIES):
            through = f"{Path(inner.file).stem}.{inner.function}" if inner else ""
            return _where(frame, through)
        inner = inner or frame
    return _where(inner, "") if inner else NOWHERE


def choose_own(frames: Iterable[_jax.Frame]) -> Where:
    """The same of a compiled operation, whose frames go on into the call of shardwise itself."""
    return choose(_within_the_program(frames))


def caller_in(frames: Iterable[_jax.Frame], where: Where) -> Where:
    """The user's line that called the function that the line of a compiled operation is in."""
    own = [one for one in _within_the_program(frames) if not one.file.startswith(_jax.LIBRARIES)]
    here = where.file, where.line
    others = (one for one in own if (one.file, one.line) != here and not one.file.startswith(_HERE))
    found = next(others, None)
    return _where(found, "") if found else NOWHERE


def _within_the_program(frames: Iterable[_jax.Frame]) -> list[_jax.Frame]:
    """The frames inside the outermost one of shardwise's own, which traces the program."""
    found = list(frames)
    ours = [place for place, one in enumerate(found) if one.file.startswith(_HERE)]
    return found[: ours[-1]] if ours else found


def _where(frame: _jax.Frame, through: str) -> Where:
    return Where(frame.file, frame.line, frame.function, frame.column, frame.end_column, through)

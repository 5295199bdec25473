"""Source lines: where in a user's file an equation comes from."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax._src import config as _config
from jax._src import source_info_util as _source
from jax._src import traceback_util as _traceback

from .._base.errors import prefix


@dataclasses.dataclass(frozen=True)
class Frame:
    """A place in a source file."""

    file: str
    line: int
    function: str
    column: int
    end_column: int
    end_line: int = 0


def user_frames(source_info: Any) -> Iterator[Frame]:
    """Yield the frames of an equation, innermost first, without JAX's own."""
    for frame in _source.user_frames(source_info.traceback):
        yield Frame(
            frame.file_name,
            frame.start_line,
            frame.function_name,
            frame.start_column,
            frame.end_column,
            frame.end_line,
        )


def is_backward(source_info: Any) -> bool:
    """Return whether an equation comes from the backward pass of a derivative."""
    return "transpose(" in str(source_info.name_stack)


def is_outermost_backward(source_info: Any) -> bool:
    """Return whether an equation comes from the backward pass of the outermost derivative around
    it."""
    derivative = re.search(r"(jvp|transpose)\(", str(source_info.name_stack))
    return derivative is not None and derivative[1] == "transpose"


def is_forward(source_info: Any) -> bool:
    """Return whether an equation comes from a forward pass that is differentiated."""
    stack = str(source_info.name_stack)
    return "jvp(" in stack and "transpose(" not in stack


def derivative_frames(source_info: Any) -> Iterator[tuple[str, list[Frame]]]:
    """Yield the derivatives that an equation is computed for, innermost first.

    Each is the function that was called, `grad` or `value_and_grad`, and the frames from its caller
    outwards.
    """
    rest = list(user_frames(source_info))
    name = ""
    for frame in source_info.traceback.frames if source_info.traceback else ():
        lines = [(user_frame.file, user_frame.line) for user_frame in rest]
        if frame.file_name.endswith("api.py") and "grad" in frame.function_name:
            # `grad_f_aux` and `value_and_grad_f` are inner functions of JAX.
            name = frame.function_name.partition(".")[0].partition("_f")[0]
        elif (frame.file_name, frame.line_num) in lines:
            index = lines.index((frame.file_name, frame.line_num))
            if name:
                yield name, rest[index:]
            name, rest = "", rest[index + 1 :]


def is_derived_around(sources: Iterable[Any]) -> bool:
    """Return whether the innermost derivative of an equation is taken around a `shard_map`.

    Takes the sources of the equation and of the calls around it; frames are innermost first.
    """
    in_shard_map = False
    for source in sources:
        for frame in source.traceback.frames if source and source.traceback else ():
            in_shard_map = in_shard_map or is_shard_map(frame.file_name)
            if frame.file_name.endswith("api.py") and "grad" in frame.function_name:
                return in_shard_map
    return False


def functions_around(source_info: Any) -> set[str]:
    """Return the names of the functions in whose calls an equation was traced, JAX's included."""
    frames = source_info.traceback.frames if source_info.traceback else ()
    return {frame.function_name for frame in frames}


def same_place(source_info: Any) -> Any:
    """Return a context in which new equations get the source line and name of an old one."""
    if source_info is None:
        return contextlib.nullcontext()
    name_stack = _source.current_name_stack() + source_info.name_stack
    return _source.user_context(source_info.traceback, name_stack=name_stack)


def library_folders(path: Iterable[str]) -> Iterator[Path]:
    """Yield the folders of packages and of the standard library, for all users or one."""
    yield from (Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib"))
    for folder in map(Path, filter(None, path)):
        is_packages = folder.name in ("site-packages", "dist-packages")
        installed = folder != Path.cwd() and any(folder.glob("jax-*.dist-info"))
        if is_packages or installed:
            yield folder


LIBRARIES = tuple(dict.fromkeys(map(prefix, library_folders(sys.path))))
"""Folders whose frames belong to libraries, not to the user."""


def is_own(file: str) -> bool:
    """Return whether a source file belongs to JAX, or to this package, which patches JAX."""
    return file.startswith(_HOMES)


def is_shard_map(file: str) -> bool:
    """Return whether a source file is that of `shard_map`."""
    return is_own(file) and Path(file).name == "shard_map.py"


def is_collective(file: str) -> bool:
    """Return whether a source file is that of the collectives."""
    return is_own(file) and Path(file).parts[-2:] == ("lax", "parallel.py")


_HOMES = (
    *(prefix(Path(str(package.__file__)).parent) for package in (jax, jaxlib)),
    prefix(Path(__file__).parent),
)

api_boundary = _traceback.api_boundary
"""A decorator: tracebacks from here on are filtered as the user has configured JAX."""


def is_ragged_batch(error: BaseException) -> bool:
    """Return whether this is JAX's assertion that all sizes of a batched ragged exchange are
    batched."""
    return _came_through(error, AssertionError, "_ragged_all_to_all_batched_collective")


def is_pmap(file: str) -> bool:
    """Return whether a source file is that of `pmap`."""
    return is_own(file) and Path(file).name == "pmap.py"


def _came_through(error: BaseException, kind: type, function: str) -> bool:
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    names = (code.co_name for code in frames if is_own(code.co_filename))
    return isinstance(error, kind) and function in names


def whole_tracebacks() -> Any:
    """Return a context in which JAX keeps its own frames in the tracebacks of its errors."""
    return _config.traceback_filtering("off")

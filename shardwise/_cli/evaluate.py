"""`shardwise evaluate`: a function over arrays on disk."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from .._base.errors import (
    ShardingError,
    ShardwiseError,
    interrupted,
    is_reported,
    notes_of,
    text_of,
)
from .cases import load
from .files import refuse_unwritable
from .report import last_line


def evaluate(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FN",
            help="fn(state, batch), as package.module:fn or path/to/file.py:fn.",
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FILE.npy",
            help="An array, memory-mapped. Named ones make the batch a dict, several unnamed ones "
            "a tuple.",
        ),
    ],
    state: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="The state: an object, or a function without arguments that returns it. "
            "None by default.",
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Examples per step. By default as many as fit.")
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Record finished steps in this file, and resume from it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    progress: Annotated[bool | None, typer.Option(help="Show progress on standard error.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show full tracebacks.")] = False,
) -> None:
    """Evaluate a function over arrays on disk: exactly, streamed, resumable.

    Started as several processes, by srun or shardwise launch, they share the work, and the first
    one prints the result.
    """
    from .._runtime.hosts import connect

    me = connect()
    arrays = load_data(data)
    if journal is not None:
        refuse_unwritable(journal, "--journal")
    with _reporting_errors(function, "importing it", verbose):
        fn = find(function, callable)
    if not callable(fn):
        raise _not_found(function, f"{type(fn).__name__} is not a function.")
    with _reporting_errors(state or "", "making the state", verbose):
        state_object: Any = None if state is None else find(state, option="--state ")
        state_value = state_object() if _makes_state(state_object) else state_object
    from .._runtime.evaluate import evaluate as run

    with _reporting_errors(function, "evaluating it", verbose), _interrupts(journal):
        result = run(fn, state_value, arrays, batch=batch, journal=journal, progress=progress)
    if me.first:
        typer.echo(json.dumps(_strict(result.to_dict())) if as_json else str(result))


@contextlib.contextmanager
def _reporting_errors(name: str, doing: str, verbose: bool) -> Iterator[None]:
    """Raise errors of the user's code with their line; errors without such a line unchanged."""
    try:
        yield
    except ShardwiseError:
        raise
    except Exception as error:
        line = last_line(error)
        if verbose or not line:
            raise
        problem = f"{doing} raised {type(error).__name__}: {text_of(error)}".removesuffix(": ")
        remedy = "--verbose shows the whole traceback."
        notes = notes_of(error, "shardwise.evaluate: ")
        what = "\n  ".join([problem, *line.splitlines(), *notes])
        raise ShardwiseError(what, where=name, remedy=remedy) from error


@contextlib.contextmanager
def _interrupts(journal: Path | None) -> Iterator[None]:
    """Report what an interrupt leaves behind, unless the run has done so."""
    try:
        yield
    except KeyboardInterrupt as error:
        if is_reported(error):
            raise
        stored = f"{str(journal)!r} has what is finished, and the same command resumes from there"
        lost = "nothing was kept; --journal FILE keeps what is finished"
        line = f"interrupted: {lost if journal is None else stored}"
        typer.echo(line, err=True)
        raise interrupted(line) from error


def load_data(options: list[str]) -> Any:
    """Return the memory-mapped data of the options: one array, a tuple or a dict."""
    pairs = [_split(option) for option in options]
    names = [name for name, _ in pairs]
    if any(names) and not all(names):
        raise _wrong("some are named and some are not", "name all of them, or none.")
    if len({*filter(None, names)}) < len([*filter(None, names)]):
        raise _wrong("a name is given twice", "name each array differently.")
    arrays = [_load(path) for _, path in pairs]
    if all(names):
        return dict(zip(names, arrays, strict=True))
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def find(name: str, fits: Callable[[Any], bool] = lambda _: True, option: str = "") -> Any:
    """Return the object that `package.module:name` or `file.py:name` names.

    Args:
        name: The argument.
        fits: Whether an object may be suggested, if there is none with this name.
        option: The option of the argument, with a trailing space; empty for the function.
    """
    place, _, attribute = name.rpartition(":")
    typed = f"{option}{name}"
    if not place or not attribute:
        raise _not_found(typed, "it is not of the form MODULE:NAME.")
    module = _load_module(place, typed)
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        every = vars(module).items()
        known = [key for key, x in every if fits(x) and not isinstance(x, ModuleType)]
        raise _not_found(typed, f"{place} has no {attribute!r}.", known) from None


def _load_module(place: str, name: str) -> ModuleType:
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise _not_found(name, f"there is no file {place!r}.")
        return load(Path(place).resolve())
    sys.path.insert(0, "")  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not f"{place}.".startswith(f"{error.name}."):
            raise
        raise _not_found(name, f"there is no module {place!r} here.") from error
    finally:
        sys.path.remove("")


def _makes_state(value: Any) -> bool:
    """Return whether an object is a function or class, and not a callable Flax module."""
    return callable(value) and (hasattr(value, "__code__") or isinstance(value, type))


def _strict(value: Any) -> Any:
    """Return data for strict JSON: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _split(option: str) -> tuple[str, str]:
    name, equals, path = option.partition("=")
    return (name, path) if equals and not Path(option).exists() else ("", option)


def _load(path: str) -> Any:
    import numpy as np

    if not Path(path).is_file():
        raise _no_file(path)
    try:
        with open(path, "rb") as file:
            start = file.read(6)
        if not start.startswith((b"\x93NUMPY", b"PK")):
            raise ValueError("it does not begin as a .npy file does")
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            raise ValueError("it is an archive of arrays")
        return loaded
    except (OSError, ValueError) as error:
        raise ShardingError(
            f"cannot be read as an array: {error}",
            where=f"--data {path}",
            rule="Data is a .npy file.",
            remedy="np.save('x.npy', x)",
        ) from error


def _no_file(path: str) -> ShardingError:
    there = {file.stem: file.name for file in sorted(Path(path).parent.glob("*.npy"))}
    near = difflib.get_close_matches(Path(path).stem, there, n=1)
    remedy = "name a .npy file that is there, as np.save writes it."
    if there:
        shown = ", ".join([*there.values()][:8])
        remedy = f"did you mean {there[near[0]]}?" if near else f"there are {shown}."
    return ShardingError("there is no such file", where=f"--data {path}", remedy=remedy)


def _wrong(what: str, remedy: str) -> ShardingError:
    return ShardingError(f"{what}.", where="--data", remedy=remedy)


def _not_found(typed: str, what: str, known: Iterable[str] = ()) -> ShardwiseError:
    place, _, attribute = typed.rpartition(":")
    near = difflib.get_close_matches(attribute, known, n=1)
    if typed.startswith("--state "):
        rule, example = (
            "The state is named MODULE:NAME, or FILE.py:NAME.",
            "--state model.py:params",
        )
    else:
        rule = "A function is named MODULE:FN, a file FILE.py:FN."
        example = "shardwise evaluate my_model:loss --data x.npy"
    remedy = f"did you mean {place}:{near[0]}?" if near else example
    return ShardwiseError(what, where=typed, rule=rule, remedy=remedy)

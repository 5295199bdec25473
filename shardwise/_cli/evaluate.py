"""`shardwise evaluate`: a function over arrays on disk."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import json
import math
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
    with _reporting_errors(function, "importing it", IMPORTING, verbose):
        fn = find(function, callable)
    if not callable(fn):
        raise _not_found(function, f"{type(fn).__name__} is not a function.")
    with _reporting_errors(state or "", "making the state", MAKING, verbose):
        state_object: Any = None if state is None else find(state, option="--state ")
        state_value = state_object() if _makes_state(state_object) else state_object
    from .._runtime.evaluate import evaluate as run

    with _reporting_errors(function, "evaluating it", EVALUATING, verbose), _interrupts(journal):
        result = run(fn, state_value, arrays, batch=batch, journal=journal, progress=progress)
    if me.first:
        typer.echo(json.dumps(_strict(result.to_dict())) if as_json else str(result))


IMPORTING = "the file is run from the top first: python, and its name, runs it alone"
MAKING = "it is called without arguments: call it so in Python"
EVALUATING = (
    "it is called with the state and a batch of the data, padded to the size of a step and traced: "
    "jax.jit(f)(state, batch) in Python does the same"
)
"""How to reproduce the error."""


@contextlib.contextmanager
def _reporting_errors(name: str, doing: str, alone: str, verbose: bool) -> Iterator[None]:
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
        remedy = f"{alone}. --verbose shows the whole traceback."
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
        wanted: Whether an object may be suggested, if there is none with this name.
        option: The option of the argument, with a trailing space; empty for the function.
    """
    place, _, attribute = name.rpartition(":")
    typed = f"{option}{name}"
    if not place or not attribute:
        raise _not_found(typed, "it is not of the form MODULE:NAME.")
    module = _load_file(Path(place), typed) if place.endswith(".py") else _load_module(place, typed)
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise _not_found(typed, f"{place} has no {attribute!r}.", _candidates(module, fits))
        value = getattr(value, part)
    return value


def _candidates(module: ModuleType, fits: Callable[[Any], bool]) -> list[str]:
    """Return names to suggest, without imported modules."""
    every = vars(module).items()
    return [name for name, x in every if fits(x) and not isinstance(x, ModuleType)]


def _load_module(place: str, name: str) -> ModuleType:
    sys.path.insert(0, "")  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and not f"{place}.".startswith(f"{error.name}."):
            raise
        raise _not_found(name, f"there is no module {place!r} here.") from error
    finally:
        sys.path.remove("")


def _load_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise _not_found(name, f"there is no file {str(path)!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look up their module
    spec.loader.exec_module(module)
    return module


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
    folder = Path(path).parent
    there = sorted(file.name for file in folder.glob("*.npy")) if folder.is_dir() else []
    stems = [name.removesuffix(".npy") for name in there]  # it is in all of them
    near = difflib.get_close_matches(Path(path).name.removesuffix(".npy"), stems, n=1)
    remedy = "name a .npy file that is there, as np.save writes it."
    if there:
        shown = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if there[8:] else "")
        remedy = f"did you mean {folder / near[0]}.npy?" if near else f"there are {shown}."
    elif not folder.is_dir():
        remedy = f"there is no folder {str(folder)!r} either: check the path."
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

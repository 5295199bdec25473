"""The settings of a project: `[tool.shardwise]` in its `pyproject.toml`.

The nearest `pyproject.toml` is used, from the working directory upwards. Options on the command
line have precedence. An unknown or invalid setting raises an error.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._analysis.faults import fault_of, nearest
from .._base.errors import ShardwiseError, did_you_mean
from .cases import split_target

TABLE = "[tool.shardwise]"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a project, with defaults."""

    paths: tuple[str, ...] = ()
    """Default files and folders of the cases; relative to the file."""
    ignore: tuple[str, ...] = ()
    """Codes that are silenced everywhere."""
    devices: int | None = None
    """The number of virtual CPU devices to start JAX with."""
    hardware: str | None = None
    """The machine of `explain`, for its estimates of seconds."""
    expect: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The bounds of `explain`: `{bytes_sent = {data = 1e6}, all_gather = 0}`."""
    all_meshes: bool = False
    """Whether `check` runs on smaller meshes too where a larger one is wrong."""
    file: Path | None = dataclasses.field(default=None, compare=False)
    """The file of the settings."""

    def refuse_missing_paths(self) -> None:
        """Raise for a missing path, naming the file that sets it."""
        for path in self.paths:
            if self.file is not None and not Path(split_target(path)[0]).exists():
                named = os.path.relpath(path, self.file.parent)
                what = f"paths has {named!r}, and there is no such file or folder."
                raise _wrong(self.file, what, "paths are relative to the folder of this file.")

    def refuse_unknown_hardware(self) -> None:
        """Raise for an unknown machine, naming the file that sets it. Imports JAX."""
        if self.hardware is None or self.file is None:
            return
        from .._analysis.explain import Hardware

        try:
            Hardware.named(self.hardware)
        except ShardwiseError as error:
            raise type(error)(f"{_where(self.file)}: {error}") from None


def load(folder: Path | None = None) -> Settings:
    """Return the settings of the nearest `pyproject.toml`."""
    start = (folder or Path.cwd()).absolute()
    for parent in (start, *start.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return Settings()


def _read(file: Path) -> Settings:
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(file, f"it cannot be read: {error}.", "correct the file.") from error
    table = tools.get("shardwise", {}) if isinstance(tools, dict) else tools
    if not isinstance(table, dict):
        raise _wrong(file, f"it is {_kind(table)}.", f'{TABLE}\npaths = ["src"]')
    settings: dict[str, Any] = {}
    for name, value in table.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"there are {', '.join(SETTINGS)}."
            raise _wrong(file, f"there is no setting {name!r}.", hint)
        settings[name] = SETTINGS[name](file, name, value)
    return Settings(**settings, file=file)


def _strings(file: Path, name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise _wrong(file, f"{name} is {_kind(value)}.", f'{name} = ["...", "..."]')
    return tuple(value)


def _paths(file: Path, name: str, value: Any) -> tuple[str, ...]:
    return tuple(os.path.relpath(file.parent / path) for path in _strings(file, name, value))


def _codes(file: Path, name: str, value: Any) -> tuple[str, ...]:
    codes = _strings(file, name, value)
    for code in codes:
        if fault_of(code) is None:
            near = nearest(code)
            hint = f"did you mean {near!r}?" if near else "shardwise rule lists the codes."
            raise _wrong(file, f"{name} has {code!r}, which is no code.", hint)
    return codes


def _devices(file: Path, name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise _wrong(file, f"{name} is {value!r}.", f"{name} = 8")
    return value


def _switch(file: Path, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(file, f"{name} is {value!r}.", f"{name} = true")
    return value


def _string(file: Path, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(file, f"{name} is {_kind(value)}.", f'{name} = "h200-node"')
    return value


def _bounds(file: Path, name: str, value: Any) -> dict[str, Any]:
    numbers = value.values() if isinstance(value, dict) else ()
    each = [bound for number in numbers for bound in _each(number)]
    if not isinstance(value, dict) or any(
        isinstance(bound, bool) or not isinstance(bound, int | float) for bound in each
    ):
        example = "{bytes_sent = {data = 1e6}, all_gather = 0}"
        raise _wrong(file, f"{name} is {_kind(value)}.", f"{name} = {example}")
    return value


def _each(bound: Any) -> list[Any]:
    return list(bound.values()) if isinstance(bound, dict) else [bound]


SETTINGS: dict[str, Callable[[Path, str, Any], Any]] = {
    "paths": _paths,
    "ignore": _codes,
    "devices": _devices,
    "hardware": _string,
    "all_meshes": _switch,
    "expect": _bounds,
}
"""Each setting, and the function that reads it."""


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"a list with {value!r} in it" if value else "an empty list"
    names = {str: "a string", int: "a number", float: "a number", bool: "a truth value"}
    return f"{names.get(type(value), 'a table')} ({value!r})"


def _wrong(file: Path, what: str, remedy: str) -> ShardwiseError:
    return ShardwiseError(what, where=_where(file), remedy=remedy)


def _where(file: Path) -> str:
    return f"{os.path.relpath(file)}, {TABLE}"

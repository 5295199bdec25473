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
        raise _wrong(file, f"it is {table!r}.", f'{TABLE}\npaths = ["src"]')
    for name, value in table.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f"there are {', '.join(SETTINGS)}."
            raise _wrong(file, f"there is no setting {name!r}.", hint)
        fits, example = SETTINGS[name]
        if not fits(value):
            raise _wrong(file, f"{name} is {value!r}.", f"{name} = {example}")
    for code in table.get("ignore", ()):
        if fault_of(code) is None:
            near = nearest(code)
            hint = f"did you mean {near!r}?" if near else "shardwise rule lists the codes."
            raise _wrong(file, f"ignore has {code!r}, which is no code.", hint)
    paths = tuple(os.path.relpath(file.parent / path) for path in table.get("paths", ()))
    ignore = tuple(table.get("ignore", ()))
    return Settings(**{**table, "paths": paths, "ignore": ignore}, file=file)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_bounds(value: Any) -> bool:
    """Return whether a value is a table of numbers, and of tables of numbers."""
    if not isinstance(value, dict):
        return False
    tables = [bound.values() if isinstance(bound, dict) else [bound] for bound in value.values()]
    return all(type(number) in (int, float) for table in tables for number in table)


SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "paths": (_are_texts, '["...", "..."]'),
    "ignore": (_are_texts, '["...", "..."]'),
    "devices": (lambda value: type(value) is int and value > 0, "8"),
    "hardware": (_is_text, '"h200-node"'),
    "all_meshes": (lambda value: isinstance(value, bool), "true"),
    "expect": (_are_bounds, "{bytes_sent = {data = 1e6}, all_gather = 0}"),
}
"""Each setting: whether a value fits it, and an example."""


def _wrong(file: Path, what: str, remedy: str) -> ShardwiseError:
    return ShardwiseError(what, where=_where(file), remedy=remedy)


def _where(file: Path) -> str:
    return f"{os.path.relpath(file)}, {TABLE}"

"""Files that a command writes: looked at before the work, named after it."""

from __future__ import annotations

from pathlib import Path

import typer

from .._base.durable import hindrance
from .._base.errors import ShardwiseError


def refuse_unwritable(path: Path | None, option: str) -> None:
    """Say before anything is computed that a file could not be written."""
    what = None if path is None else hindrance(path)
    if what is not None:
        raise ShardwiseError(
            what,
            where=f"{option} {path}",
            rule="Where the file goes is looked at before anything is computed.",
            remedy="name a file in a folder that is there and can be written to.",
        )


def say_written(path: Path | str) -> None:
    """Name a file that was written, apart from what was asked for."""
    typer.echo(f"written: {path}", err=True)

"""Files that a command writes: checked before the work, reported after it."""

from __future__ import annotations

from pathlib import Path

import typer

from .._base.durable import hindrance
from .._base.errors import ShardwiseError


def refuse_unwritable(path: Path | None, option: str) -> None:
    """Raise before anything is computed if a file cannot be written."""
    what = None if path is None else hindrance(path)
    if what is not None:
        raise ShardwiseError(
            what,
            where=f"{option} {path}",
            rule="The file is checked before anything is computed.",
            remedy="name a file in a folder that is there and can be written to.",
        )


def say_written(path: Path | str) -> None:
    """Report a file that was written, on standard error."""
    typer.echo(f"written: {path}", err=True)

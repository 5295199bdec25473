"""Files that a command writes: looked at before the work, named after it."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from .._errors import ShardwiseError, explain_error


def refuse_unwritable(path: Path | None, option: str) -> None:
    """Say before anything is computed that a file could not be written."""
    what = None if path is None else _hindrance(path)
    if what is not None:
        raise ShardwiseError(
            explain_error(
                what,
                where=f"{option} {path}",
                rule="Where the file goes is looked at before anything is computed.",
                remedy="name a file in a folder that is there and can be written to.",
            )
        )


def _hindrance(path: Path) -> str | None:
    if path.is_dir():
        return "this is a folder."
    if not path.parent.exists():
        return f"there is no folder {str(path.parent)!r}."
    if not path.parent.is_dir():
        return f"{str(path.parent)!r} is not a folder."
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "it cannot be written to."
    return None


def say_written(path: Path | str) -> None:
    """Name a file that was written, apart from what was asked for."""
    typer.echo(f"written: {path}", err=True)

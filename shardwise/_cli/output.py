"""Standard output: encodings, and errors of writing to it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator

import typer

from .._base.errors import ShardwiseError, explain_error
from .status import ExitCode

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""The errors from writing to a full disk."""

PRINTERS = (
    *(__name__, "shardwise._analysis.explain.text", "shardwise._practice.watch"),
    *("click", "typer", "rich"),
)
"""The modules and packages that write to standard output."""


def in_any_encoding() -> None:
    """Replace characters that the terminal cannot encode by `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Handle errors of writing to standard output: print one line, and exit with 2."""
    try:
        try:
            yield
        finally:
            _flush()
    except OSError as error:
        if error.errno not in FULL or error.filename is not None or not _is_of_printing(error):
            raise
        drop_the_rest()
        message = explain_error(
            f"it cannot be written to ({error.strerror})",
            where="standard output",
            remedy="make room, or print to another place.",
        )
        with contextlib.suppress(OSError):
            typer.echo(f"{ShardwiseError.__name__}: {message}", err=True)
        sys.exit(ExitCode.NOT_RUN)


def _is_of_printing(error: OSError) -> bool:
    """Return whether an error came from writing to standard output."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else at.tb_frame.f_globals.get("__name__", "")
    return any(f"{module}.".startswith(f"{name}.") for name in PRINTERS)


def _flush() -> None:
    """Flush standard output while errors can still be reported."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        drop_the_rest()


def drop_the_rest() -> None:
    """Discard further output, since Python's flush at exit would fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

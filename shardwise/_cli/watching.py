"""`shardwise check --watch`: check again each time a file is saved.

Each check runs in a new process, which imports the files and their dependencies anew. An error in
one of them ends that check, but not the watch.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from .cases import python_files
from .options import OutputFormat

BEAT = 0.3
"""Seconds between two scans of the files."""


def watch_and_check(targets: list[str], flags: Mapping[str, Any], output: OutputFormat) -> NoReturn:
    """Check each time a file changes, until Ctrl-C."""
    command = [sys.executable, "-m", "shardwise", "check", *targets, *_words(flags, output)]
    folders = [_folder(target) for target in targets]
    for number, changed in enumerate(_changes(folders)):
        if number:
            typer.echo(f"\n{time.strftime('%H:%M:%S')}  {', '.join(changed)} changed", err=True)
        subprocess.run(command, check=False)
        names = ", ".join(sorted({str(folder) for folder in folders}))
        typer.echo(f"watching {names}; Ctrl-C ends it", err=True)
    raise AssertionError("the watch ends with Ctrl-C")


def _words(flags: Mapping[str, Any], output: OutputFormat) -> Iterator[str]:
    """Yield the options as command-line arguments."""
    yield from ("--format", output.value)
    for name, value in flags.items():
        if value is True:
            yield name
        elif value not in (None, False):
            yield from (name, str(value))


def _folder(target: str) -> Path:
    """Return the folder to watch for a target."""
    path = Path(target.partition(".py:")[0] + ".py" if ".py:" in target else target)
    return path if path.is_dir() else path.parent


def _changes(folders: list[Path]) -> Iterator[list[str]]:
    """Yield an empty list, then the names of the changed files each time."""
    before = _seen(folders)
    yield []
    while True:
        time.sleep(BEAT)
        now = _seen(folders)
        if now != before:
            changed = sorted({file for file, _ in now.items() ^ before.items()})
            before = now
            yield changed


def _seen(folders: list[Path]) -> dict[str, tuple[int, int]]:
    """Return the modification time and the size of each Python file."""
    states = {}
    for folder in folders:
        for file in python_files(folder):
            try:
                state = file.stat()
            except OSError:
                continue  # it was deleted in the meantime
            states[str(file)] = (state.st_mtime_ns, state.st_size)
    return states

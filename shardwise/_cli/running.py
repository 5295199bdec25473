"""Helpers of the commands that run cases: import path, devices, console, errors."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .._base.doing import showing_progress
from .._base.errors import ShardwiseError
from .cases import LocatedCase, find_cases
from .report import CaseOutcome

if TYPE_CHECKING:
    from rich.console import Console

    from .._analysis.check import Case

T = TypeVar("T")


def start_devices(count: int) -> None:
    """Start JAX with `count` virtual CPU devices; JAX reads the flags only at startup."""
    flag = "--xla_force_host_platform_device_count"
    others = re.sub(rf"{flag}=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} {flag}={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.pop("JAX_NUM_CPU_DEVICES", None)  # it has precedence over the flag
    import jax

    if jax.device_count() != count:
        raise ShardwiseError(
            f"JAX had started before, with {jax.device_count()} devices.",
            where=f"--devices {count}",
            rule="The number of devices is fixed when JAX starts.",
            remedy="run shardwise in a process of its own.",
        )


@contextlib.contextmanager
def path_as_it_was() -> Iterator[None]:
    """Restore `sys.path` after all cases have run: importing them adds their folders."""
    path = sys.path[:]
    try:
        yield
    finally:
        sys.path[:] = path


def import_cases(targets: list[str]) -> list[LocatedCase]:
    """Return all cases of the files and folders named; what they print is no result."""
    with contextlib.redirect_stdout(sys.stderr), showing_progress("importing"):
        return find_cases(targets)


def attempt(
    entry: LocatedCase, title: str, work: Callable[[Case], T]
) -> tuple[CaseOutcome, T | None]:
    """Return what `work` returns for a case, or the error as its outcome.

    What the program prints goes to standard error: standard output is for the result.
    """
    if entry.case is None:
        return CaseOutcome(entry, error=entry.error), None
    with showing_progress(title), contextlib.redirect_stdout(sys.stderr):
        try:
            return CaseOutcome(entry), work(entry.case)
        except (Exception, SystemExit) as error:
            return CaseOutcome(entry, error=error), None


def one_case_for_files(verb: str, cases: Sequence[LocatedCase], *paths: Path | None) -> None:
    """Raise if several cases would be written into one file."""
    if len(cases) > 1 and any(paths):
        names = ", ".join(case.name for case in cases)
        raise ShardwiseError(
            f"there are {len(cases)} cases: {names}",
            where=str(next(path for path in paths if path)),
            rule="A file has one case.",
            remedy=f"name it: shardwise {verb} {cases[0].name}",
        )


def console() -> Console:
    """Return a console that uses colour only on a terminal and never wraps lines."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)

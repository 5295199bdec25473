"""`shardwise check --diff` and `--fix`: print the verified fixes as patches, or apply them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .._base.durable import write_file
from .cases import shown, split_target
from .report import CaseOutcome

if TYPE_CHECKING:
    from .._analysis.check import Fix

ROUNDS, ROUND = 8, "SHARDWISE_FIX_ROUND"
"""The maximum number of rounds of fixing and checking, and the variable that counts them."""

BYTE_ORDER_MARK = "\ufeff"


def fixes_of(outcomes: Sequence[CaseOutcome]) -> list[Fix]:
    """Return the fixes of all cases, each once."""
    fixes = [finding.fix for outcome in outcomes for finding in outcome.findings if finding.fix]
    return list({(fix.file, fix.after): fix for fix in fixes}.values())


def patches(outcomes: Sequence[CaseOutcome]) -> Iterator[str]:
    """Yield one diff for each file, since a second one would not apply after the first."""
    first: dict[str, Fix] = {}
    for fix in fixes_of(outcomes):
        if fix.file in first:
            typer.echo(
                f"{shown(fix.file)}: another fix is left out: apply this one first", err=True
            )
        else:
            first[fix.file] = fix
    yield from (_patch(fix).removesuffix("\n") for fix in first.values())


def _patch(fix: Fix) -> str:
    """Return the diff of a fix with the line endings of its file, without which it would fail."""
    from .._analysis.fixes.source import shown_path, unified_diff

    content = _content(Path(fix.file)) or ""
    if _as_in(content, fix.before) == fix.before:
        return fix.diff
    texts = (_as_in(content, text) for text in (fix.before, fix.after))
    return unified_diff(shown_path(fix.file), *texts)


def _as_in(content: str, text: str) -> str:
    """Return text with the line endings, final newline and byte order mark of a file."""
    mark = BYTE_ORDER_MARK if content.startswith(BYTE_ORDER_MARK) else ""
    text = text if content.endswith("\n") else text.removesuffix("\n")
    return mark + (text.replace("\n", "\r\n") if "\r\n" in content else text)


def apply_fixes(outcomes: Sequence[CaseOutcome], targets: Sequence[str]) -> int:
    """Write the fixed files, report the files that must not be changed, and return the count."""
    count, edited = 0, set()
    for fix in fixes_of(outcomes):
        file = Path(fix.file)
        if fix.file in edited:
            continue
        if not _is_named(file, targets):
            typer.echo(f"{shown(file)}: not fixed, it is not below {', '.join(targets)}", err=True)
        elif not (content := _content(file)) or content != _as_in(content, fix.before):
            typer.echo(f"{shown(file)}: not fixed, it has changed since it was checked", err=True)
        else:
            write_file(file, _as_in(content, fix.after))
            typer.echo(f"{shown(file)}: fixed ({fix.verified}): {fix.description}")
            edited.add(fix.file)
            count += 1
    return count


def check_again() -> int:
    """Run the same command in a new process, which imports the fixed files."""
    number = int(os.environ.get(ROUND, "0")) + 1
    if number >= ROUNDS:
        return subprocess.run([*_command(), "--no-fix"], check=False).returncode
    environment = {**os.environ, ROUND: str(number)}
    return subprocess.run(_command(), check=False, env=environment).returncode


def _command() -> list[str]:
    return [sys.executable, "-m", "shardwise", *sys.argv[1:]]


def _content(file: Path) -> str | None:
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None


def _is_named(file: Path, targets: Sequence[str]) -> bool:
    """Return whether a file is a target or below one."""
    paths = [Path(split_target(target)[0]).resolve() for target in targets]
    return any(file.resolve().is_relative_to(path) for path in paths)

"""Find comments that silence nothing, so that they can be removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .._analysis.faults import Fault, canonical, fault_of, nearest
from .._base.plain import Plain
from .cases import shown
from .report import CaseOutcome, command

if TYPE_CHECKING:
    from .._analysis.faults import Ignore


LooksFor = Callable[[type[Fault]], bool]
"""Whether a command can find a fault."""


@dataclasses.dataclass(frozen=True)
class Unused(Plain):
    """A code in a comment, and the reason why it silences nothing."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}: {self.why}"

    def github(self) -> str:
        """Return the same as a workflow command."""
        return command("warning", shown(self.file), self.line, "shardwise: ignore", self.why)


def unused_in(
    outcomes: Sequence[CaseOutcome], targets: Sequence[str], looks_for: LooksFor
) -> list[Unused]:
    """Return the comments without effect, in files all of whose cases were run.

    Only codes of faults that the command `looks_for` count.
    """
    from .._analysis.faults import ignores_in

    whole = {str(outcome.entry.file) for outcome in outcomes if _whole(outcome.entry.file, targets)}
    whole -= {str(outcome.entry.file) for outcome in outcomes if outcome.error is not None}
    used = {use for outcome in outcomes for use in outcome.silencers()}
    return [
        unused
        for file in sorted(whole)
        for ignore in ignores_in(file)
        for unused in _unused(ignore, used, looks_for)
    ]


def _whole(file: Path, targets: Sequence[str]) -> bool:
    """Return whether a file, or a folder that contains it, is a target as a whole."""
    paths = [Path(target).resolve() for target in targets]
    return any(file == path or path in file.parents for path in paths)


def _unused(
    ignore: Ignore, used: set[tuple[str, int, str]], looks_for: LooksFor
) -> Iterator[Unused]:
    if not ignore.codes:
        remedy = "name the code of the finding: # shardwise: ignore[SW203]"
        yield Unused(ignore.file, ignore.line, f"the comment names no code; {remedy}")
    for code in ignore.codes:
        if (fault := fault_of(code)) is None:
            hint = f"; did you mean {near}?" if (near := nearest(code)) else ""
            why = f"there is no finding {code!r} to ignore{hint}"
            yield Unused(ignore.file, ignore.line, why)
        elif looks_for(fault) and (ignore.file, ignore.line, canonical(code)) not in used:
            yield Unused(ignore.file, ignore.line, f"the comment silences no {code}")

"""The journals of an evaluation: one file for each process that has taken part in it.

Process 0 has the path itself, process 3 the path with the suffix `.p3`; no file has two writers. A
run on fewer processes also reads the files of the missing ones.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...._base.errors import path_of
from ...hosts.shared import require_shared
from ..processes import Share
from ..spans import Span, computed_twice
from .journal import Journal


class Journals:
    """The journal that this process writes, and others that it only reads; a context manager.

    Args:
        path: The argument `journal`.
        share: The steps of this process.
    """

    def __init__(self, path: str | os.PathLike[str], share: Share) -> None:
        base = path_of(path, "argument 'journal'")
        if share.shared:
            require_shared(base.absolute().parent, "journal in folder")
        with ExitStack() as opened:
            path = base if share.index == 0 else _named(base, share.index)
            self._written = opened.enter_context(Journal(path))
            self._others = [
                opened.enter_context(Journal(_named(base, k)))
                for k in _numbers(base)
                if k >= share.count and k % share.count == share.index
            ]
            self._stack = opened.pop_all()
        self.path = self._written.path
        self.add, self.flush = self._written.add, self._written.flush
        self.note = self._written.note

    def __enter__(self) -> Journals:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def _all(self) -> list[Journal]:
        return [self._written, *self._others]

    def meta(self) -> dict[str, Any]:
        """Return the facts about the run; empty if all journals are new."""
        facts = [meta for journal in self._all if (meta := journal.meta())]
        batches = [meta["batch"] for meta in facts if "batch" in meta]
        return {**facts[0], **({"batch": min(batches)} if batches else {})} if facts else {}

    def claim(self, fingerprint: dict[str, str], names: dict[str, str]) -> None:
        """Claim all of them for a run; raise if one belongs to another."""
        for journal in self._all:
            journal.claim(fingerprint, names)

    @property
    def damaged(self) -> int:
        """The number of rows of all of them that were skipped."""
        return sum(len(journal.damaged) for journal in self._all)

    def steps(self, length: int | None) -> Iterator[tuple[Span, int, bytes]]:
        """Yield the finished steps of all, in the order of their examples."""
        parts = [journal.steps(length) for journal in self._all]
        previous = Span(0, 0)
        for step in heapq.merge(*parts, key=lambda step: step[0]):
            if step[0].start < previous.stop:
                raise computed_twice(step[0], f"journal {str(self.path)!r} and those beside it")
            previous = step[0]
            yield step


def _named(base: Path, process: int) -> Path:
    return base.with_name(f"{base.name}.p{process}")


def _numbers(base: Path) -> list[int]:
    """Return the processes that have a journal beside this one."""
    pattern = re.compile(re.escape(base.name) + r"\.p(\d+)")
    try:
        names = os.listdir(base.absolute().parent)
    except OSError:
        return []  # opening the journal raises
    matches = filter(None, map(pattern.fullmatch, names))
    return sorted(int(match[1]) for match in matches)

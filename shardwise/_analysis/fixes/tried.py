"""What is known of an edit that was tried, and what is to be tried after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..._meaning import Gap
from .candidate import Candidate
from .program import is_open


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A candidate and its result on the hardest mesh."""

    candidate: Candidate
    gaps: list[list[Gap]]
    misshapen: frozenset[int]
    """The indices of the results that have a wrong shape."""

    @property
    def right(self) -> frozenset[int]:
        """The indices of the results that are proved."""
        return frozenset(index for index, gaps in enumerate(self.gaps) if not gaps)

    @property
    def mistakes(self) -> int:
        """The number of operations that still misuse a share."""
        return len({id(m.op) for gaps in self.gaps for gap in gaps for m in gap.mistakes})

    def is_better(self, other: Tried) -> bool:
        """Return whether more results are right, or fewer operations wrong, and none got worse."""
        if not self.right >= other.right or self.is_open:
            return False
        fewer = self.misshapen < other.misshapen or 0 < self.mistakes < other.mistakes
        return self.right > other.right or fewer

    @property
    def is_right(self) -> bool:
        """Whether every result is proved."""
        return len(self.right) == len(self.gaps)

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that the candidate is wrong."""
        return not self.misshapen and is_open(self.gaps)


@dataclasses.dataclass(eq=False)
class Front:
    """A program, edited or not, and what is still to be tried on it."""

    now: Tried
    candidates: Iterator[Candidate]
    mistakes: int = 1
    """The number of mistakes that a fix would then have fixed."""
    better: Tried | None = None
    """The best candidate that makes no further result right: tried when nothing else is left."""

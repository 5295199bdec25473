"""What check says of the corpus, in numbers."""

from __future__ import annotations

import dataclasses
import functools

import shardwise as sw
from tests.support import check

from .corpus import Pair


@dataclasses.dataclass(eq=False)
class Judgement:
    """What check says of one pair, each program when it is asked for."""

    pair: Pair

    @functools.cached_property
    def wrong(self) -> sw.Verdict:
        """Of the wrong program."""
        return check(self.pair.wrong, *self.pair.args(), mesh=self.pair.mesh)

    @functools.cached_property
    def right(self) -> sw.Verdict:
        """Of the right one."""
        return check(self.pair.right, *self.pair.args(), mesh=self.pair.mesh)

    @property
    def faulted(self) -> bool:
        """Whether the wrong program is called wrong."""
        return not self.wrong.ok

    @property
    def named(self) -> bool:
        """Whether it is called wrong for a fair reason."""
        return any(f.code in self.pair.codes for f in self.wrong.findings if f.certain)

    @property
    def on_line(self) -> bool:
        """Whether that is said of a marked line, in the file of the program."""
        return any(self._fair(f) for f in self.wrong.findings if f.certain)

    @property
    def astray(self) -> list[int]:
        """The lines of other certain findings."""
        found = [f for f in self.wrong.findings if f.certain and not self._fair(f)]
        return [f.where.line for f in found]

    def _fair(self, finding: sw.Finding) -> bool:
        here = finding.where.file.endswith(f"corpus/{self.pair.kind}.py")
        return here and finding.where.line in self.pair.lines


@functools.cache
def judge(pair: Pair) -> Judgement:
    """Check the programs of a pair."""
    return Judgement(pair)

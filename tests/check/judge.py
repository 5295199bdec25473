"""What check says of the corpus, in numbers."""

from __future__ import annotations

import dataclasses
import functools

import shardwise as sw

from .corpus import Pair


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What check says of one pair."""

    pair: Pair
    wrong: sw.Verdict
    right: sw.Verdict

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
    """Check both programs of a pair."""
    args = pair.args()
    wrong = sw.check(pair.wrong, *args, mesh=pair.mesh)
    return Judgement(pair, wrong, sw.check(pair.right, *args, mesh=pair.mesh))

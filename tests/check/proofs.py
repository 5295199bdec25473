"""What `prove` says of the corpus, in numbers: `python -m tests.check.proofs [PART OF A NAME ...]`.

For each class the wrong programs that are refuted by their meaning alone (`run=False`) and in all,
those whose first finding is at a marked line, and the right twins that are proved. `-v` prints the
proofs of wrong programs that are not refuted at their line.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from tests.devices import request_devices

COLUMNS = (
    "programs",
    "by meaning",
    "at the line",
    "refuted",
    "at its line",
    "unknown",
    "WRONG PROVED",
    "twins proved",
    "twins unknown",
    "TWINS REFUTED",
)


@dataclasses.dataclass(frozen=True)
class Judged:
    """What is said of a pair."""

    pair: Any
    alone: Any
    """The proof of the wrong program from its meaning alone."""
    wrong: Any
    right: Any

    def at_line(self, proof: Any) -> bool:
        """Whether the first finding of a refuted program is at a marked line."""
        first = next((found for found in proof.findings if found.certain), None)
        if proof.status != "refuted" or first is None:
            return False
        here = first.where.file.endswith(f"corpus/{self.pair.kind}.py")
        return here and first.where.line in self.pair.lines

    def row(self) -> dict[str, bool]:
        """What is counted."""
        return {
            "programs": True,
            "by meaning": self.alone.status == "refuted",
            "at the line": self.at_line(self.alone),
            "refuted": self.wrong.status == "refuted",
            "at its line": self.at_line(self.wrong),
            "unknown": self.wrong.status == "unknown",
            "WRONG PROVED": "proved" in (self.wrong.status, self.alone.status),
            "twins proved": self.right.status == "proved",
            "twins unknown": self.right.status == "unknown",
            "TWINS REFUTED": self.right.status == "refuted",
        }


def judge(pair: Any) -> Judged:
    """Prove both programs of a pair."""
    import shardwise as sw

    args = pair.args()
    alone = sw.prove(pair.wrong, *args, mesh=pair.mesh, run=False)
    wrong = sw.prove(pair.wrong, *args, mesh=pair.mesh)
    return Judged(pair, alone, wrong, sw.prove(pair.right, *args, mesh=pair.mesh))


def main(argv: Sequence[str]) -> int:
    """Print the figures; 1 if something wrong is proved or something right refuted."""
    request_devices()
    from .corpus import KINDS, pairs

    parts = [part for part in argv if part != "-v"]
    total: collections.Counter[str] = collections.Counter()
    print(f"{'':12}" + "".join(f"{name:>14}" for name in COLUMNS))
    for kind in KINDS:
        own: collections.Counter[str] = collections.Counter()
        for pair in pairs():
            if pair.kind != kind or not (not parts or any(part in str(pair) for part in parts)):
                continue
            one = judge(pair)
            own.update({name: int(so) for name, so in one.row().items()})
            _tell(one, "-v" in argv)
        if own:
            _print(kind, own)
        total.update(own)
    _print("all", total)
    return int(total["WRONG PROVED"] + total["TWINS REFUTED"] > 0)


def _tell(one: Judged, fully: bool) -> None:
    if not one.at_line(one.wrong):
        found = [f"{f.code}:{f.where.line}" for f in one.wrong.findings if f.certain]
        said = f"{one.wrong.status} {' '.join(found)}; marked {sorted(one.pair.lines)}"
        print(f"  {one.pair}: {said}", flush=True)
        if fully:
            print("    " + str(one.wrong).replace("\n", "\n    "), flush=True)
    if one.right.status != "proved":
        print(f"  {one.pair}: its right twin is {one.right.status}", flush=True)


def _print(name: str, row: collections.Counter[str]) -> None:
    print(f"{name:12}" + "".join(f"{row[column]:14}" for column in COLUMNS), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

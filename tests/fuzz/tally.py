"""What came of the programs, kept in a file from run to run.

A tally is a list of runs, one for each JAX version and seed. A run remembers which of its programs
are done, so that the same command goes on where it stopped, and several processes may write to one
file: each replaces its own run and keeps the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = {
    "right": "the same, simulated and real",
    "found": "hang on real devices, and were found to",
    "wrong": "failed",
    "refused": "refused by JAX itself",
    "hung": "hung or aborted on real devices, ended",
}
"""What may come of a program, in words."""


@dataclass
class Run:
    """The programs of one seed on one version of JAX."""

    jax: str
    seed: int
    kinds: Counter = field(default_factory=Counter)
    features: Counter = field(default_factory=Counter)
    refusals: Counter = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    hung: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    error: float = 0.0
    seconds: float = 0.0

    def add(self, report: dict[str, Any]) -> None:
        """Count one program."""
        number, kind, why = report["number"], report["kind"], report["why"]
        self._forget(number)
        self.done.add(number)
        self.kinds[kind] += 1
        if kind in ("right", "found", "wrong"):
            self.features.update(report["features"])
        if kind == "right":
            self.error = max(self.error, report["error"])
        elif kind == "refused":
            self.refusals[first_line(why)] += 1
        elif kind == "wrong":
            self.failed[number] = why
        elif kind == "hung":
            self.hung.append(number)

    def _forget(self, number: int) -> None:
        """A program that failed and is run again counts once."""
        if number in self.failed:
            del self.failed[number]
            self.kinds["wrong"] -= 1

    @property
    def line(self) -> str:
        """Where the run stands."""
        shares = ", ".join(f"{n} {kind}" for kind in KINDS if (n := self.kinds[kind]))
        return f"{len(self.done)} programs ({shares}), largest difference {self.error:.1e}"

    def to_json(self) -> dict[str, Any]:
        """The run as plain data."""
        return {
            **vars(self),
            "done": list(_ranges(self.done)),
            "features": dict(sorted(self.features.items())),
            "refusals": dict(self.refusals.most_common(40)),
            "failed": {str(k): v[:2000] for k, v in sorted(self.failed.items())},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Run:
        """The run that was written as `data`."""
        counted = {k: Counter(data[k]) for k in ("kinds", "features", "refusals")}
        failed = {int(k): v for k, v in data["failed"].items()}
        done = {n for first, last in data["done"] for n in range(first, last + 1)}
        return cls(**{**data, **counted, "failed": failed, "done": done})


def first_line(why: str) -> str:
    """The first line of a reason without what differs from program to program."""
    line = why.splitlines()[0] if why else ""
    return re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "0", line)[:120]


def read(path: Path) -> list[Run]:
    """The runs in a file; none if it is not there."""
    if not path.exists():
        return []
    return [Run.from_json(data) for data in json.loads(path.read_text())["runs"]]


def resume(path: Path | None, jax: str, seed: int) -> Run:
    """The run of this version and seed as the file has it, or a new one."""
    same = [r for r in read(path) if (r.jax, r.seed) == (jax, seed)] if path else []
    return same[0] if same else Run(jax, seed)


def save(path: Path, run: Run) -> None:
    """Put the run into the file; the others in it stay."""
    with _alone(path):
        others = [r for r in read(path) if (r.jax, r.seed) != (run.jax, run.seed)]
        runs = sorted([*others, run], key=lambda r: (r.jax, r.seed))
        text = json.dumps({"runs": [r.to_json() for r in runs]}, indent=1)
        new = path.with_name(path.name + ".new")
        new.write_text(text + "\n")
        os.replace(new, path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The numbers as first and last of each stretch without a gap."""
    stretch: list[int] = []
    for number in sorted(numbers):
        if stretch and number > stretch[-1] + 1:
            yield stretch[0], stretch[-1]
            stretch = []
        stretch.append(number)
    if stretch:
        yield stretch[0], stretch[-1]


def table(runs: list[Run]) -> str:
    """All runs added up, by JAX version and by feature, as Markdown."""
    versions = sorted({r.jax for r in runs})
    lines = ["| | " + " | ".join(f"JAX {v}" for v in versions) + " |"]
    lines.append("|---|" + "---:|" * len(versions))

    def row(name: str, values: list[int]) -> None:
        lines.append(f"| {name} | " + " | ".join(f"{v:,}" for v in values) + " |")

    def total(name: str, key: str) -> list[int]:
        return [sum(getattr(r, name)[key] for r in runs if r.jax == v) for v in versions]

    row("programs", [sum(len(r.done) for r in runs if r.jax == v) for v in versions])
    for kind, words in KINDS.items():
        row(words, total("kinds", kind))
    lines.append("")
    features = sorted({f for r in runs for f in r.features})
    lines += ["| feature | " + " | ".join(f"JAX {v}" for v in versions) + " |"]
    lines.append("|---|" + "---:|" * len(versions))
    for feature in features:
        row(feature, total("features", feature))
    return "\n".join(lines)

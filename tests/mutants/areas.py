"""The parts of the package that bugs are planted in, and the tests that should find them."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Area:
    """Source files (globs), the tests of them (globs), and its share of the mutants."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    share: float
    without: tuple[str, ...] = ()

    def files(self, root: Path) -> list[str]:
        """Return the source files."""
        found = {path for glob in self.sources for path in root.glob(glob)}
        skipped = {path for glob in self.without for path in root.glob(glob)}
        return sorted(str(path.relative_to(root)) for path in found - skipped)

    def test_files(self, root: Path) -> list[str]:
        """Return the files of tests, those that are named first in front."""
        found = dict.fromkeys(path for glob in self.tests for path in sorted(root.glob(glob)))
        return [str(path.relative_to(root)) for path in found if path.name.startswith("test_")]


AREAS = {
    "engine": Area(
        sources=(
            "shardwise/_engine/lower/*.py",
            "shardwise/_program/*.py",
            "shardwise/_program/collectives.py",
        ),
        # Numbers of these only make a program faster or a report prettier.
        without=("shardwise/_engine/lower/machine.py", "shardwise/_engine/lower/cost.py"),
        tests=(
            "tests/conformance/test_table.py",
            "tests/conformance/test_[!tpm]*.py",
            "tests/conformance/test_memory.py",
            "tests/test_primitives.py",
        ),
        share=0.35,
    ),
    "rules": Area(
        sources=(
            "shardwise/_meaning/*.py",
            "shardwise/_meaning/term/*.py",
            "shardwise/_analysis/prove/*.py",
        ),
        without=("shardwise/_meaning/words.py", "shardwise/_meaning/notes.py"),
        tests=("tests/meaning/test_*.py", "tests/check/test_corpus.py"),
        share=0.3,
    ),
    "verdicts": Area(
        sources=("shardwise/_analysis/check/*.py", "shardwise/_analysis/draw/*.py"),
        tests=(
            "tests/check/test_[!cp]*.py",
            "tests/check/test_corpus.py",
            "tests/check/test_c*.py",
        ),
        share=0.2,
    ),
    "sums": Area(
        sources=(
            "shardwise/_runtime/evaluate/reduce/*.py",
            "shardwise/_runtime/train/step/gradient.py",
        ),
        tests=("tests/evaluate/test_evaluate_[vwd]*.py", "tests/train/test_step.py"),
        share=0.15,
    ),
}

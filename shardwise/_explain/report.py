"""The report as `sw.explain` gives it: the data, with all that can be made of it as methods."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .compare import Comparison, compare
from .cost import with_cost
from .data import Facts
from .hardware import Hardware
from .save import save
from .text import plain_text


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Facts):
    """What a sharded program sends, holds and costs. Made by `sw.explain`."""

    def on(self, hardware: str | Hardware) -> Report:
        """The same report with what the program would cost on `hardware`; nothing is traced."""
        return with_cost(self, hardware)

    def compare(self, other: Facts) -> Comparison:
        """What changes from this report to `other`: traffic, memory, work and time."""
        return compare(self, other)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file; the name says as what.

        Args:
            path: `trace.json` or `*.trace.json` for Perfetto, any other `*.json` for the data,
                `*.html` for a page, `*.txt` for the text, `*.svg` or `*.png` for one figure, whose
                name comes before the suffix: `step.mesh.svg`.

        Returns:
            The path.
        """
        return save(self, Path(path))

    def __str__(self) -> str:
        return plain_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from .page import notebook

        return notebook(self)

"""The report that `sw.explain` returns: the data, with methods to print, compare and save it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..._base.calls import public_methods
from ..._base.errors import ArgumentError, a_type, path_of
from .beside import with_findings
from .budget import Bound, refuse_excess
from .compare import Comparison, compare
from .cost import with_cost
from .facts import ReportData
from .hardware import Hardware
from .save import save
from .text import plain_text


@public_methods("report")
@dataclasses.dataclass(frozen=True, repr=False)
class Report(ReportData):
    """What a sharded program sends, stores and costs. Returned by `sw.explain`."""

    def on(self, hardware: str | Hardware) -> Report:
        """Return the report with the cost of the program on `hardware`; nothing is traced again."""
        return with_cost(self, hardware)

    def compare(self, other: ReportData) -> Comparison:
        """Compare with another report: changes in traffic, memory, work and time."""
        if not isinstance(other, ReportData):
            raise ArgumentError(
                f"it is compared with {a_type(other)}",
                where="report.compare",
                rule="Two reports are compared.",
                remedy="before.compare(after), both from sw.explain",
            )
        return compare(self, other)

    def expect(
        self,
        *,
        bytes_sent: Bound | None = None,
        peak_memory: float | None = None,
        **counts: Bound,
    ) -> Report:
        """Raise an error if the program sends or stores more than this; else return the report.

        Args:
            bytes_sent: The most bytes that one device may send in one call; a dict bounds each
                mesh axis: `{"data": 1e6}`.
            peak_memory: The most bytes that one device may hold.
            **counts: How often a collective may run in one call: `all_gather=0`,
                `psum={"model": 8}`, `collectives=12` for all of them.

        Raises:
            BudgetError: A bound is exceeded; an `AssertionError` with the rows, by line.
        """
        bounds = {"bytes_sent": bytes_sent, "peak_memory": peak_memory, **counts}
        refuse_excess(self, {name: bound for name, bound in bounds.items() if bound is not None})
        return self

    def beside(self, judged: Any) -> Report:
        """Return the report with the findings of a verdict or a proof next to their traffic.

        Args:
            judged: The result of `sw.check` or `sw.prove` for the same function.
        """
        if not hasattr(judged, "findings"):
            raise ArgumentError(
                f"it is set beside {a_type(judged)}",
                where="report.beside",
                rule="A report is set beside what sw.check or sw.prove gives.",
                remedy="report.beside(sw.prove(f, *args, mesh=mesh))",
            )
        return with_findings(self, judged)

    def save(self, path: str | Path) -> Path:
        """Write the report to a file; the file name determines the format.

        Args:
            path: `trace.json` or `*.trace.json` for Perfetto, any other `*.json` for the data,
                `*.html` for a page, `*.txt` for the text.

        Returns:
            The path.
        """
        path = path_of(path, "report.save")
        return save(self, path)

    def __str__(self) -> str:
        return plain_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from .page import notebook

        return notebook(self)

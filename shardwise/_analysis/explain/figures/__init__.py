"""Draw single figures of a report, for papers and for the page."""

from __future__ import annotations

from collections.abc import Callable

from ...._base.errors import ShardwiseError
from .. import units
from ..facts import ReportData
from . import charts, mesh, program
from .draw import Drawing

FIGURES: dict[str, Callable[[ReportData], Drawing]] = {
    "mesh": mesh.figure,
    "program": program.figure,
    "traffic": charts.traffic,
    "memory": charts.memory,
    "scaling": charts.scaling,
}
"""The figures by name."""

ZOOM = 3
"""Pixels of a PNG per unit of a drawing, for sharp print."""


def draw(report: ReportData, figure: str) -> Drawing:
    """Draw one figure of a report.

    Raises:
        ShardwiseError: There is no such figure, or the report lacks its data.
    """
    if figure not in FIGURES:
        raise ShardwiseError(
            f"there is no figure {figure!r}; there are {', '.join(FIGURES)}",
            where="Report.save",
            rule="What comes before .svg or .png is the name of a figure.",
            remedy="report.save('mesh.svg') or report.save('step.mesh.svg').",
        )
    if figure == "scaling" and report.cost is None:
        raise ShardwiseError(
            "the report has no cost",
            where="figure 'scaling'",
            rule="How a program scales depends on the hardware.",
            remedy="report.on('h200-node').save('scaling.svg')",
        )
    drawing = FIGURES[figure](report)
    mesh = units.mesh([(axis.name, axis.size) for axis in report.mesh])
    machine = f", modelled on {report.cost.hardware.name}" if report.cost else ""
    drawing.subtitle = f"{report.name} on {mesh}{machine}"
    return drawing


def svg(report: ReportData, figure: str) -> str:
    """Return a figure as a standalone SVG file."""
    return draw(report, figure).standalone()


def png(report: ReportData, figure: str) -> bytes:
    """Return a figure as a PNG; needs the extra `png`.

    Raises:
        ShardwiseError: The extra is not installed.
    """
    drawing = draw(report, figure)
    try:
        import resvg_py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ShardwiseError(
            "resvg_py is not installed",
            where="Report.save",
            rule="It turns a figure into a PNG.",
            remedy="pip install 'shardwise[png]', or save the figure as .svg.",
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=drawing.standalone(), zoom=ZOOM))

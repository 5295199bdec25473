"""Write a report to a file; the file name determines the format."""

from __future__ import annotations

import json
from pathlib import Path

from ..._base.durable import write_as, write_file
from .facts import ReportData
from .text import plain_text


def save(report: ReportData, path: Path) -> Path:
    """Write the report and return the path."""
    if f".{path.name}".endswith(".trace.json"):
        return save_trace(report, path)
    formats = {
        ".html": lambda: _html(report),
        ".json": lambda: json.dumps(report.to_dict(), indent=2),
        ".txt": lambda: plain_text(report),
    }
    names = "report.html, report.json, trace.json (for Perfetto) or report.txt."
    return write_as(path, formats, "a report", names)


def save_page(report: ReportData, path: Path) -> Path:
    """Write the HTML page, whatever the file name; return the path."""
    write_file(path, _html(report))
    return path


def save_trace(report: ReportData, path: Path) -> Path:
    """Write the trace for Perfetto, whatever the file name; return the path."""
    from .trace import trace

    write_file(path, json.dumps(trace(report)))
    return path


def _html(report: ReportData) -> str:
    from .page import html

    return html(report)

"""Write a report to a file; the file name determines the format."""

from __future__ import annotations

import json
from pathlib import Path

from ..._base.durable import write_file
from ..._base.errors import ShardwiseError
from .facts import ReportData
from .text import plain_text


def save(report: ReportData, path: Path) -> Path:
    """Write the report and return the path."""
    match path.suffix:
        case ".json" if path.name == "trace.json" or path.name.endswith(".trace.json"):
            save_trace(report, path)
        case ".json":
            write_file(path, json.dumps(report.to_dict(), indent=2))
        case ".txt":
            write_file(path, plain_text(report))
        case ".html":
            save_page(report, path)
        case _:
            raise ShardwiseError(
                f"{path.suffix!r} is not a format of a report"
                if path.suffix
                else "the name has no suffix",
                where=str(path),
                rule="The suffix says what is written.",
                remedy="report.html, report.json, trace.json (for Perfetto) or report.txt.",
            )
    return path


def save_page(report: ReportData, path: Path) -> Path:
    """Write the HTML page, whatever the file name; return the path."""
    from .page import html

    write_file(path, html(report))
    return path


def save_trace(report: ReportData, path: Path) -> Path:
    """Write the trace for Perfetto, whatever the file name; return the path."""
    from .trace import trace

    write_file(path, json.dumps(trace(report)))
    return path

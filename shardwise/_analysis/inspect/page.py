"""An inspection as one self-contained HTML page, and as a fragment for notebooks.

The page has the inspection as JSON and a small script that shows one stop at a time. The fragment
for notebooks has no script: notebooks remove scripts from untrusted outputs.
"""

from __future__ import annotations

import functools
import json
import linecache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from ..._base import pages
from ..._base.version import __version__
from .data import InspectionData
from .text import rows

BESIDE = 4
"""The number of source lines shown around those that compute values."""

TINTS = (
    ("#d5e8f5", "#15405c"),
    ("#f9e2cf", "#5c3413"),
    ("#d3ece3", "#134a3b"),
    ("#f1dcea", "#57284a"),
    ("#efe7c8", "#4d4210"),
    ("#e1e4e8", "#3a424d"),
    ("#dcdff5", "#2d3166"),
    ("#f5d9d9", "#5e2828"),
)
"""The background colour of a part, light and dark: one for each distinct part."""

EXACT = (1 << 53) - 1
"""The largest integer that JavaScript represents exactly with its neighbours."""

LIMIT = 60
"""The most values in the fragment for notebooks."""


def html(inspection: InspectionData) -> str:
    """Return the whole page."""
    # Inside a script element nothing may look like its end.
    data = json.dumps(_for_script(page_data(inspection))).replace("<", "\\u003c")
    page = environment().get_template("page.html.j2")
    return page.render(found=inspection, data=Markup(data), version=__version__)


def _for_script(data: Any) -> Any:
    """Return data for a script: integers that a double cannot represent become strings."""
    match data:
        case dict():
            return {key: _for_script(item) for key, item in data.items()}
        case list():
            return [_for_script(item) for item in data]
        case int() if abs(data) > EXACT:
            return str(data)
    return data


def notebook(inspection: InspectionData) -> str:
    """Return the fragment that a notebook shows."""
    return (
        environment()
        .get_template("notebook.html.j2")
        .render(found=inspection, stops=inspection.stops, limit=LIMIT)
    )


@functools.cache
def environment() -> Environment:
    """Return the environment of the templates."""
    tints = {f"tint{k}": pair for k, pair in enumerate(TINTS)}
    templates = pages.environment(Path(__file__).parent / "templates", tints)
    templates.globals["rows"] = rows
    return templates


def page_data(inspection: InspectionData) -> dict[str, Any]:
    """Return the data for the script of the page: steps, stops and lines of source."""
    stops = inspection.stops
    number = {id(step): index for index, step in enumerate(inspection.steps)}
    return {
        **inspection.to_dict(),
        "tints": len(TINTS),
        "sources": _sources(inspection),
        "stops": [
            {
                "file": stop.where.file,
                "line": stop.where.line,
                "iteration": list(stop.iteration),
                "mark": stop.mark,
                "steps": [number[id(step)] for step in stop.steps],
                "shown": [number[id(step)] for step in stop.shown],
            }
            for stop in stops
        ],
    }


def _sources(inspection: InspectionData) -> list[dict[str, Any]]:
    """Return the lines around those that make values, file by file, in order of first use."""
    used: dict[str, set[int]] = {}
    for step in inspection.steps:
        if step.where.file:
            used.setdefault(step.where.file, set()).add(step.where.line)
    return [
        {"file": file, "name": Path(file).name, "lines": _lines(file, lines)}
        for file, lines in used.items()
    ]


def _lines(file: str, used: set[int]) -> list[list[Any]]:
    text = linecache.getlines(file)
    visible = sorted(
        number
        for number in range(1, len(text) + 1)
        if any(abs(number - line) <= BESIDE for line in used)
    )
    return [[number, text[number - 1].rstrip("\n"), number in used] for number in visible]

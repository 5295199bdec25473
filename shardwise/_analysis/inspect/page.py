"""An inspection as one HTML page that needs nothing else, and as a piece for notebooks.

The page holds the inspection as JSON and a small script that shows one stop at a time. The piece
for notebooks has no script: notebooks take scripts out of outputs they do not trust.
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
from .data import Facts
from .text import rows

BESIDE = 4
"""How many lines of source around those that make values are shown."""

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
"""The background of what a device holds, light and dark: one for each different part."""

EXACT = (1 << 53) - 1
"""Up to which whole number a script tells each from the next."""

LIMIT = 60
"""How many values the piece for notebooks has, at most."""


def html(found: Facts) -> str:
    """Return the whole page."""
    # Inside a script element nothing may look like its end.
    data = json.dumps(_for_script(page_data(found))).replace("<", "\\u003c")
    page = environment().get_template("page.html.j2")
    return page.render(found=found, data=Markup(data), version=__version__)


def _for_script(data: Any) -> Any:
    """Return data as a script reads it right: whole numbers that a double does not hold are
    strings."""
    match data:
        case dict():
            return {key: _for_script(one) for key, one in data.items()}
        case list():
            return [_for_script(one) for one in data]
        case int() if abs(data) > EXACT:
            return str(data)
    return data


def notebook(found: Facts) -> str:
    """Return the piece that a notebook shows."""
    return (
        environment()
        .get_template("notebook.html.j2")
        .render(found=found, stops=found.stops, limit=LIMIT)
    )


@functools.cache
def environment() -> Environment:
    """Return the templates, and what they ask for."""
    tints = {f"tint{k}": pair for k, pair in enumerate(TINTS)}
    templates = pages.environment(Path(__file__).parent / "templates", tints)
    templates.globals["rows"] = rows
    return templates


def page_data(found: Facts) -> dict[str, Any]:
    """Return what the script of the page needs: steps, stops and lines of source."""
    stops = found.stops
    number = {id(step): index for index, step in enumerate(found.steps)}
    return {
        **found.to_dict(),
        "tints": len(TINTS),
        "sources": _sources(found),
        "stops": [
            {
                "file": stop.where.file,
                "line": stop.where.line,
                "turn": list(stop.turn),
                "mark": stop.mark,
                "steps": [number[id(step)] for step in stop.steps],
                "shown": [number[id(step)] for step in stop.shown],
            }
            for stop in stops
        ],
    }


def _sources(found: Facts) -> list[dict[str, Any]]:
    """Return the lines around those that make values, file by file, in order of first use."""
    used: dict[str, set[int]] = {}
    for step in found.steps:
        if step.where.file:
            used.setdefault(step.where.file, set()).add(step.where.line)
    return [
        {"file": file, "name": Path(file).name, "lines": _lines(file, lines)}
        for file, lines in used.items()
    ]


def _lines(file: str, used: set[int]) -> list[list[Any]]:
    text = linecache.getlines(file)
    shown = sorted(
        number
        for number in range(1, len(text) + 1)
        if any(abs(number - line) <= BESIDE for line in used)
    )
    return [[number, text[number - 1].rstrip("\n"), number in used] for number in shown]

"""Render the report as one self-contained HTML file, and as a smaller piece for notebooks.

Every number on the page is in a `<data value=...>` (in a figure, a `data-value`) with the
unrounded number of `Report.to_dict()`. The templates escape all text from the program.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from ..._base import pages
from ..._base.version import __version__
from ..._program import Where
from ..._program.collectives import RULES
from . import units
from .data import CollectiveUse
from .facts import Remark, ReportData
from .figures import charts, mesh
from .figures.draw import Drawing, axis_colors
from .outline import Entry, outline
from .rows import most_expensive

SHOWN = 4
"""The number of arrays of a layout listed before the rest is folded."""

BOUNDS = {
    "arithmetic": "arithmetic",
    "memory": "reading and writing memory",
    "bandwidth": "sending",
    "latency": "waiting for messages",
}
"""Names for what takes longest."""


CALL = re.compile(r"jax\.[\w.]*\w(?:\((?:[^()]|\([^()]*\))*\))?")
"""A name in JAX, with its arguments if it is called."""

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are not allowed in figures."""


def html(report: ReportData) -> str:
    """Return the whole page."""
    return _render("page.html.j2", report)


def notebook(report: ReportData) -> str:
    """Return the HTML for a notebook: the summary first, the rest folded."""
    return _render("notebook.html.j2", report)


def _render(template: str, report: ReportData) -> str:
    page = _environment().get_template(template)
    view = PageView(report)
    text = page.render(report=report, view=view, version=__version__, made=_now())
    return NOT_XML.sub("\ufffd", text)


def _now() -> datetime.datetime:
    """Return the current time, or `SOURCE_DATE_EPOCH` for reproducible builds."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    zone = datetime.UTC
    return datetime.datetime.fromtimestamp(int(text), zone) if text else datetime.datetime.now(zone)


@functools.cache
def _environment() -> Environment:
    environment = pages.environment(Path(__file__).parent / "templates")
    environment.filters |= {
        "axes": units.axes,
        "size": lambda value: _number(value, units.size(value)),
        "flop": lambda value: _number(value, units.large(value, "FLOP")),
        "duration": lambda value: _number(value, units.duration(value)),
        "share": lambda value: _number(value, units.share(value)),
        "number": lambda value: _number(value, f"{value:,}"),
        "ticks": _ticks,
        "sentence": _sentence,
        "times": lambda value: "unknown" if value is None else _number(value, f"{value:,}"),
    }
    environment.globals |= {
        "array": lambda shape, dtype: Markup('<code class="sw-array">{}</code>').format(
            units.array(shape, dtype)
        ),
        "colors": list(pages.COLORS),
        "bounds": BOUNDS,
    }
    return environment


def _number(value: float, words: str) -> Markup:
    """Format a number for readers, with the unrounded number as attribute."""
    return Markup('<data value="{}">{}</data>').format(repr(value), words)


def _ticks(words: str) -> Markup:
    """Mark text in backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(words))))


def _sentence(words: str) -> Markup:
    """Format text as a sentence with JAX calls as code; a leading name keeps its case."""
    words = str(words)
    first = words.partition(" ")[0]
    if first.isalpha() and first not in {*RULES, "pmean"}:
        words = words[:1].upper() + words[1:]
    words += "" if words.endswith((".", ":")) else "."
    return Markup(CALL.sub(r"<code>\g<0></code>", str(escape(words))))


@dataclasses.dataclass(frozen=True)
class PageView:
    """Figures and groupings that templates need beyond the data of a report."""

    report: ReportData

    @property
    def sizes(self) -> list[tuple[str, int, str]]:
        """The mesh axes: name, size and colour."""
        return [(axis.name, axis.size, self.colors([axis.name])[0]) for axis in self.report.mesh]

    def colors(self, names: Sequence[str]) -> list[str]:
        """Return the CSS class names of the colours of axes."""
        return axis_colors(self.report, names)

    @property
    def most_expensive(self) -> list[CollectiveUse]:
        """The most expensive collectives, one per line; none where there is no choice."""
        return self.sources([row.first for row in most_expensive(self.report)])

    @property
    def devices(self) -> Markup:
        """The figure of the devices."""
        return _picture(mesh.devices(self.report))

    @property
    def layouts(self) -> list[dict[str, Any]]:
        """A figure and a description of each layout, with its arrays."""
        return [
            {
                "picture": _picture(mesh.shards(self.report, layout)),
                "words": layout.words(self.report),
                "arrays": (*layout.arguments, *layout.results),
                "shown": SHOWN,
            }
            for layout in mesh.layouts(self.report)
        ]

    @property
    def passes(self) -> list[tuple[str, list[Entry]]]:
        """The program in order, grouped by pass."""
        entries = outline(self.report)
        groups = itertools.groupby(entries, lambda entry: entry.step.direction)
        return [(direction, list(group)) for direction, group in groups]

    @property
    def used(self) -> list[tuple[str, ...]]:
        """The axes, or groups of axes, that collectives use."""
        return list(dict.fromkeys(use.axes for use in self.report.collectives))

    def sources(self, uses: Sequence[CollectiveUse]) -> list[CollectiveUse]:
        """Return one collective for each line of the program."""
        return list({(use.where.file, use.where.line): use for use in uses}.values())

    def hint(self, entry: Entry) -> str:
        """Return the tooltip of a collective."""
        use = entry.uses[0]
        times = "times unknown" if use.count is None else f"{use.count:,} ×"
        return (
            f"{use.name} over {units.axes(use.axes)}: {entry.array}, "
            f"{times} {units.size(entry.launch.bytes_sent if entry.launch else 0)}\n"
            f"{use.where}: {use.where.text}"
        )

    def caller(self, entry: Entry) -> Where | None:
        """Return the line that called the function containing a collective, if several collectives
        share the collective's own line."""
        line = entry.uses[0].where
        firsts = (self.report.collectives[launch.collectives[0]] for launch in self.report.launches)
        count = sum((use.where.file, use.where.line) == (line.file, line.line) for use in firsts)
        return entry.uses[0].caller if count > 1 and entry.uses[0].caller.file else None

    def findings(self, entry: Entry) -> list[Remark]:
        """Return the findings on the line of a collective."""
        places = set(entry.launch.collectives) if entry.launch else set()
        return [note for note in self.report.findings if places.intersection(note.collectives)]

    def figure(self, name: str) -> Markup:
        """Return a chart by its name."""
        return _picture(getattr(charts, name)(self.report))


def _picture(drawing: Drawing) -> Markup:
    return Markup(drawing.inline())

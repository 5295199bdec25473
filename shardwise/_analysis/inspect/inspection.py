"""The inspection that `sw.inspect` returns: the data, with methods to print and save it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ..._base.calls import public_methods
from ..._base.durable import write_as
from ..._base.errors import path_of
from .data import InspectionData
from .page import html, notebook
from .text import text


@public_methods("inspection")
@dataclasses.dataclass(frozen=True, repr=False)
class Inspection(InspectionData):
    """Every value of a sharded program in program order, with its part on each device.

    `print` shows it line by line, a notebook shows it as a table, and `save("page.html")` writes a
    page to step through. Iterating gives the steps.
    """

    def text(self, every: bool = False) -> str:
        """Return the inspection for a terminal; `every` shows values in the middle of a line
        too."""
        return text(self, every)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def html(self) -> str:
        """Return one self-contained page: the program, the devices, and buttons to step."""
        return html(self)

    def save(self, path: str | Path) -> Path:
        """Write it to `page.html`, `data.json` or `text.txt`; return the path."""
        path = path_of(path, "inspection.save")
        formats = {
            ".html": self.html,
            ".json": lambda: json.dumps(self.to_dict(), indent=2),
            ".txt": lambda: self.text(every=True) + "\n",
        }
        names = "inspection.html, inspection.json or inspection.txt."
        return write_as(path, formats, "an inspection", names)

    def _repr_html_(self) -> str:
        return notebook(self)

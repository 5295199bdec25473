"""The Jinja environment, the palette and the style sheet that all HTML pages share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

COLORS = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1d232b", "#e4e8ee"),
    "soft": ("#5a6472", "#9ba6b5"),
    "line": ("#d3d9e0", "#373f4a"),
    "fill": ("#eef1f4", "#22272f"),
    "held": ("#3f5f8a", "#7f9fca"),
    "made": ("#8fa3b8", "#5b6d82"),
    "rest": ("#c6cfd8", "#424c59"),
    "warn": ("#a8410b", "#f0a070"),
    "axis0": ("#0067a6", "#4fa8e0"),
    "axis1": ("#b24a00", "#f0914a"),
    "axis2": ("#00765a", "#3fbf98"),
    "axis3": ("#a0457f", "#de94c4"),
    "axis4": ("#7a6000", "#e0bd3f"),
    "axis5": ("#4d5560", "#c3cad3"),
}
"""Each colour in the light and in the dark theme.

The colours of the axes differ in brightness too, for people who do not see all colours.
"""


def environment(folder: Path, more: Mapping[str, tuple[str, str]] | None = None) -> Environment:
    """Return an environment for the templates in a folder.

    Templates can include `style.css.j2`, which includes the `page.css` of the folder, and
    `common.js`; they have the `themes` as CSS declarations, light and dark.

    Args:
        folder: The folder.
        more: Further colours, light and dark.
    """
    env = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    palette = COLORS | dict(more or {})
    env.globals["themes"] = [
        Markup("".join(f"--{name}:{pair[k]};" for name, pair in palette.items())) for k in (0, 1)
    ]
    return env

"""Build SVG drawings, and define the colours that figures and page share.

A shape names its colour by a class, which gets it from the style sheet of the page, so that a
figure follows the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from ..data import MeshAxis
from ..facts import ReportData

AXES = 6
"""The number of axes with a colour of their own; then colours repeat."""

RAMP = ((32, 48, 84), (63, 99, 138), (110, 148, 167), (171, 192, 165), (230, 215, 150))
"""The colours of the parts of an array, from first to last, with increasing brightness."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"


def axis_color(axes: Sequence[MeshAxis], name: str) -> str:
    """Return the name of the colour of a mesh axis."""
    order = [axis.name for axis in axes]
    return f"axis{order.index(name) % AXES}" if name in order else "soft"


def axis_colors(report: ReportData, names: Sequence[str]) -> list[str]:
    """Return the colours of a collective: one for each of its axes."""
    return [axis_color(report.mesh, name) for name in names] or ["soft"]


def part_color(part: int, parts: int) -> tuple[str, str]:
    """Return the colour of one of several parts, and a text colour readable on it."""
    place = (len(RAMP) - 1) * (part / (parts - 1) if parts > 1 else 0.5)
    low = min(int(place), len(RAMP) - 2)
    pairs = zip(RAMP[low], RAMP[low + 1], strict=True)
    red, green, blue = (round(a + (b - a) * (place - low)) for a, b in pairs)
    bright = sum(
        w * (c / 255) ** 2.2 for w, c in zip((0.21, 0.72, 0.07), (red, green, blue), strict=True)
    )
    return f"#{red:02x}{green:02x}{blue:02x}", "#000000" if bright > 0.18 else "#ffffff"


def fit(words: str, room: float, size: float) -> str:
    """Truncate text of a size to a width."""
    limit = int(room / (0.56 * size))
    return words if len(words) <= limit else words[: max(1, limit - 1)] + "…"


class Drawing:
    """An SVG of a fixed size in units, which are pixels unless it is scaled."""

    def __init__(self, width: float, height: float, title: str, description: str = ""):
        attributes = {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_plain(width)} {_plain(height)}",
            "font-family": FONT,
            "class": "sw-figure",
            "role": "img",
            "aria-label": f"{title}. {description}" if description else title,
        }
        self.root = ElementTree.Element("svg", attributes)

    def _add(
        self, tag: str, color: str, attributes: dict[str, object], hint: str = ""
    ) -> ElementTree.Element:
        attrs = {key.replace("_", "-"): _plain(value) for key, value in attributes.items()}
        if color.startswith("#"):
            attrs = {
                key: color if value == "currentColor" else value for key, value in attrs.items()
            }
        else:
            attrs["class"] = f"sw-{color}"
        element = ElementTree.SubElement(self.root, tag, attrs)
        if hint:
            ElementTree.SubElement(element, "title").text = hint
        return element

    def rect(
        self, x: float, y: float, width: float, height: float, color: str, hint: str = ""
    ) -> None:
        """Draw a filled rectangle; `hint` is its tooltip."""
        box = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0)}
        self._add("rect", color, {**box, "fill": "currentColor"}, hint)

    def bar(
        self, x: float, y: float, width: float, height: float, colors: Sequence[str], hint: str
    ) -> None:
        """Draw a bar with one stripe for each colour, stacked vertically."""
        stripe = height / len(colors)
        for number, color in enumerate(colors):
            self.rect(x, y + number * stripe, width, stripe, color, hint)

    def path(self, data: str, color: str, **more: object) -> None:
        """Draw a line, or with `fill` an area."""
        self._add("path", color, {"d": data, "fill": "none", "stroke": "currentColor", **more})

    def circle(self, x: float, y: float, radius: float, color: str, hint: str = "") -> None:
        """Draw a dot."""
        self._add("circle", color, {"cx": x, "cy": y, "r": radius, "fill": "currentColor"}, hint)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        color: str = "ink",
        *,
        size: float = 12,
        anchor: str = "start",
        room: float | None = None,
        value: float | None = None,
        **more: object,
    ) -> None:
        """Write text with its baseline at a point; cut to `room`, with the full text as tooltip.

        `value` is the unrounded number that it shows, written as `data-value`.
        """
        scaled = size * (1.12 if "font_weight" in more else 1)
        fitted = words if room is None else fit(words, room, scaled)
        attrs = {"x": x, "y": y, "font_size": size, "fill": "currentColor", **more}
        if anchor != "start":
            attrs["text_anchor"] = anchor
        if value is not None:
            attrs["data_value"] = repr(value)
        element = self._add("text", color, attrs, words if fitted != words else "")
        if len(element):
            element[0].tail = fitted
        else:
            element.text = fitted

    def inline(self) -> str:
        """Return SVG for an HTML page, coloured by its style sheet and scaled to fit."""
        return ElementTree.tostring(self.root, encoding="unicode")


def _plain(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)

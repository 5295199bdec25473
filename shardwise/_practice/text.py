"""Make untrusted text safe to print, by escaping what a terminal would interpret."""

from __future__ import annotations

KEPT = frozenset("\n\t")


def visible(text: str) -> str:
    """Escape control and formatting characters in a text.

    These include terminal escapes, carriage returns, bidirectional marks and lone surrogates,
    which cannot be encoded.
    """
    return "".join(char if char.isprintable() or char in KEPT else _escaped(char) for char in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")

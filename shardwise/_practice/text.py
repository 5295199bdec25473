"""Make untrusted text safe to print, by escaping what a terminal would interpret."""

from __future__ import annotations

KEPT = frozenset("\n\t")


def visible(text: str) -> str:
    """Escape control and formatting characters in a text.

    These include terminal escapes, carriage returns, bidirectional marks and lone surrogates,
    which cannot be encoded.
    """
    return "".join(one if one.isprintable() or one in KEPT else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")

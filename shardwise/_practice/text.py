"""Text of strangers, made safe to print: what a terminal would obey is shown instead."""

from __future__ import annotations

KEPT = frozenset("\n\t")


def visible(text: str) -> str:
    """Return a text in which control and formatting characters stand as escapes.

    Among them are terminal escapes, carriage returns, marks that turn the direction of writing
    and lone surrogates, which cannot be written to a file at all.
    """
    return "".join(one if one.isprintable() or one in KEPT else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")

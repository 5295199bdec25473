"""The little Markdown that statements and hints are written in, as HTML: everything is escaped."""

from __future__ import annotations

import html
import re

ITEM = re.compile(r"(\d+)\. (.*)")


def to_html(text: str) -> str:
    """Paragraphs, numbered lists, indented code, `code` and *emphasis*."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines):
        code = "\n".join(line[4:] for line in lines)
        return f"<pre>{html.escape(code)}</pre>"
    if ITEM.match(lines[0]):
        return "<ol>" + "".join(f"<li>{_inline(item)}</li>" for item in _items(lines)) + "</ol>"
    return f"<p>{_inline(' '.join(line.strip() for line in lines))}</p>"


def _items(lines: list[str]) -> list[str]:
    items: list[str] = []
    for line in lines:
        if found := ITEM.match(line):
            items.append(found[2])
        else:
            items[-1] += " " + line.strip()
    return items


def _inline(text: str) -> str:
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"<code>{html.escape(part[1:-1])}</code>"
        if part.startswith("`") and len(part) > 1
        else re.sub(r"\*([^*\s][^*]*)\*", r"<em>\1</em>", html.escape(part))
        for part in parts
    )

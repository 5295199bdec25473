"""Write the pages of codes from the classes: `python -m tests.check.codes_pages`.

What the examples print is kept where it is still right, and written anew where it is not.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.devices import request_devices
from tests.test_docs import blocks, write_page

DOCS = Path(__file__).parents[2] / "docs"
PRINTS = re.compile(r"^(print|prove)\(", re.MULTILINE)


def without_output(text: str) -> str:
    """Return a page without what its examples print."""
    return re.sub(r"(^```\n)\n```text\n.*?^```\n", r"\1", text, flags=re.MULTILINE | re.DOTALL)


def with_output(rendered: str, before: str) -> str:
    """Return a page with what its examples printed before, empty for those that are new."""
    known = {block.code: block.shown for block in blocks(before)}
    for block in [*blocks(rendered)]:
        if PRINTS.search(block.code):
            code = f"```python{block.head}\n{block.code}```\n"
            shown = known.get(block.code) or "\n"
            rendered = rendered.replace(code, f"{code}\n```text\n{shown}```\n")
    return rendered


def main() -> None:
    """Write every page."""
    request_devices()
    from shardwise._analysis.faults import render
    from shardwise._analysis.faults.pages import PAGES

    for name in PAGES:
        page = DOCS / name / "codes.md"
        page.write_text(with_output(render(name), page.read_text("utf-8")), "utf-8")
        write_page(page)


if __name__ == "__main__":
    main()

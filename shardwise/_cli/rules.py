"""The page of each finding, read from the documentation: one source for people and for machines.

A wheel carries the two pages (see `force-include` in pyproject.toml); a checkout has them in docs/.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

PAGES = ("check", "prove")
CODE = re.compile(r"SW\d{3}")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A code with what it says in a few words, and its section of the documentation."""

    code: str
    title: str
    text: str
    page: str
    shared: str = ""
    """The code that the examples of its page build on, as Markdown."""

    @property
    def description(self) -> str:
        """The first paragraph, as plain text."""
        first = self.standalone.strip().split("\n\n")[0]
        return re.sub(r"[*`]", "", first).replace("\n", " ")

    @property
    def standalone(self) -> str:
        """The section without links to other pages, which elsewhere would lead nowhere."""
        return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", self.text)

    @property
    def printed(self) -> str:
        """The section as it reads away from the documentation: links by the names of pages."""
        text = re.sub(r"\[([^\]]+)\]\((?!https?:)([^)#]*)[^)]*\)", self._named, self.text)
        if not self.shared or "```python" not in text:
            return text
        words = "The example builds on these lines, which all examples of its page share:"
        return f"{text}\n\n{words}\n\n{self.shared}"

    def _named(self, link: re.Match[str]) -> str:
        words, target = link.groups()
        if not target:
            return words
        page = posixpath.normpath(posixpath.join(posixpath.dirname(self.page), target))
        return f"{words} (in the documentation: {page.removesuffix('.md')})"


@functools.cache
def rules() -> dict[str, Rule]:
    """All rules by their codes, in order."""
    found = {}
    for page in PAGES:
        text = _page(page)
        titles = dict(_titles(text))
        before = text.partition("\n## ")[0]
        shared = "\n\n".join(re.findall(r"^```python\n.*?^```$", before, re.M | re.S))
        for code, section in _sections(text):
            found[code] = Rule(code, titles.get(code, ""), section, f"{page}/codes.md", shared)
    return dict(sorted(found.items()))


def _page(name: str) -> str:
    packed = Path(__file__).with_name("pages") / f"{name}.md"
    if not packed.is_file():
        packed = Path(__file__).parents[2] / "docs" / name / "codes.md"
    return packed.read_text(encoding="utf-8")


def _titles(text: str) -> Iterator[tuple[str, str]]:
    for code, title in re.findall(r"^\| \[(SW\d{3})\]\(#\w+\) \| ([^|]+) \|", text, re.MULTILINE):
        yield code, title.strip()


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    for heading, section in zip(parts[1::2], parts[2::2], strict=True):
        if CODE.fullmatch(heading.strip()):
            yield heading.strip(), section.strip()


def nearest(code: str) -> str:
    """The code that was probably meant by one that is none; nothing if that is not plain."""
    plain = code.strip().upper().translate(str.maketrans("OIL", "011"))
    near = difflib.get_close_matches(plain, rules(), n=1, cutoff=0.75)
    return near[0] if near else ""

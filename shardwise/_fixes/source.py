"""A user's source file as text with byte ranges: find expressions, replace them, show the diff."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import difflib
import functools
import linecache
import os
from collections.abc import Iterable, Iterator

Range = tuple[int, int, int, int]
"""First line, last line, first column, last column; columns in bytes, as Python counts them."""


@dataclasses.dataclass(frozen=True, order=True)
class Edit:
    """Replace the bytes from `start` to `end` with `text`."""

    start: int
    end: int
    text: str


class Source:
    """One file: its text, its syntax tree, and where each expression stands."""

    def __init__(self, file: str, text: str):
        self.file, self.text = file, text
        self.data = text.encode()
        self.tree = ast.parse(text)
        starts = [0]
        for line in self.data.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    @classmethod
    def read(cls, file: str) -> Source | None:
        """Read a file, or a notebook cell; None where there is no source that parses."""
        text = "".join(linecache.getlines(file))
        try:
            return cls(file, text) if text.strip() else None
        except (SyntaxError, ValueError):
            return None

    @functools.cached_property
    def _by_range(self) -> dict[Range, ast.expr]:
        found: dict[Range, ast.expr] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr):
                found.setdefault(_range(node), node)
        return found

    def expression_at(self, place: Range) -> ast.expr | None:
        """Return the expression that stands exactly there."""
        return self._by_range.get(place)

    def span(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        """Return the byte range of a node."""
        first, last, column, end = _range(node)
        return self._starts[first - 1] + column, self._starts[last - 1] + end

    def line_of(self, offset: int) -> int:
        """Return the line of a byte."""
        return bisect.bisect_right(self._starts, offset)

    def text_of(self, node: ast.expr) -> str:
        """Return the source of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def replace(self, node: ast.expr, text: str) -> Edit:
        """Return the edit that puts `text` in the place of a node."""
        return Edit(*self.span(node), text)

    def around(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the expressions around a node, from the inside out, up to its statement."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Lambda):
                return
            if isinstance(parent, ast.expr):
                yield parent
            parent = self.parents.get(parent)

    def function_around(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, FUNCTIONS):
            found = self.parents.get(found)
        return found or self.tree

    def applied(self, edits: Iterable[Edit]) -> str:
        """Return the text with these edits, which must not overlap."""
        data = self.data
        for edit in sorted(edits, reverse=True):
            data = data[: edit.start] + edit.text.encode() + data[edit.end :]
        return data.decode()


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _range(node: ast.expr | ast.keyword | ast.stmt) -> Range:
    last, end = node.end_lineno, node.end_col_offset
    assert last is not None
    assert end is not None
    return node.lineno, last, node.col_offset, end


def shown_path(file: str) -> str:
    """Return a path for a diff: relative to the working directory if it is below it."""
    near = os.path.relpath(file) if os.path.isabs(file) else file
    return file if near.startswith("..") else near


def unified_diff(file: str, before: str, after: str) -> str:
    """Return the change of a file as a unified diff that `patch -p0` applies."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), file, file
    )
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(ended)

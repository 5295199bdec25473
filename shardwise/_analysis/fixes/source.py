"""A source file as text with byte ranges: find expressions, replace them, show the diff."""

from __future__ import annotations

import ast
import bisect
import dataclasses
import difflib
import functools
import linecache
import os
import re
from collections.abc import Iterable, Iterator

from ..._program import Where

Range = tuple[int, int, int, int]
"""First line, last line, first column, last column; columns in bytes, as in `ast`."""


@dataclasses.dataclass(frozen=True, order=True)
class Edit:
    """Replace the bytes from `start` to `end` with `text`."""

    start: int
    end: int
    text: str

    @property
    def names(self) -> set[str]:
        """The names that the new text uses, without attributes."""
        return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", self.text))


class Source:
    """One file: its text, its syntax tree, and the positions of its expressions."""

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
        """Read a file or a notebook cell; None if its source is missing or does not parse."""
        text = "".join(linecache.getlines(file))
        try:
            return cls(file, text) if text.strip() else None
        except (SyntaxError, ValueError):
            return None

    @functools.cached_property
    def _by_range(self) -> dict[Range, ast.expr]:
        by_range: dict[Range, ast.expr] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr):
                by_range.setdefault(_range(node), node)
        return by_range

    def expression_at(self, place: Range) -> ast.expr | None:
        """Return the expression at exactly this range."""
        return self._by_range.get(place)

    def span(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        """Return the byte range of a node."""
        first_line, last_line, column, end = _range(node)
        return self._starts[first_line - 1] + column, self._starts[last_line - 1] + end

    def offset(self, line: int, column: int) -> int:
        """Return the byte offset of a line and column."""
        return self._starts[line - 1] + column

    def line_of(self, offset: int) -> int:
        """Return the line of a byte offset."""
        return bisect.bisect_right(self._starts, offset)

    def text_of(self, node: ast.expr) -> str:
        """Return the source text of a node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def replace(self, node: ast.expr, text: str) -> Edit:
        """Return the edit that replaces a node by `text`."""
        return Edit(*self.span(node), text)

    def around(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the expressions around a node, innermost first, up to its statement or lambda."""
        parent = self.parents.get(node)
        while parent is not None and not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Lambda):
                return
            if isinstance(parent, ast.expr):
                yield parent
            parent = self.parents.get(parent)

    def function_around(self, node: ast.AST) -> ast.AST:
        """Return the innermost function around a node, or the module."""
        ancestor = self.parents.get(node)
        while ancestor is not None and not isinstance(ancestor, FUNCTIONS):
            ancestor = self.parents.get(ancestor)
        return ancestor or self.tree

    def statement_at(self, edit: Edit) -> ast.stmt | None:
        """Return the module-level statement that contains an edit."""
        for statement, (start, end) in self._statements.items():
            if start <= edit.start and edit.end <= end:
                return statement
        return None

    @functools.cached_property
    def _statements(self) -> dict[ast.stmt, tuple[int, int]]:
        spans = {}
        for statement in self.tree.body:
            start, end = self.span(statement)
            decorators = getattr(statement, "decorator_list", [])
            starts = [self._starts[decorator.lineno - 1] for decorator in decorators]
            spans[statement] = min([start, *starts]), end
        return spans

    def edited_statement(self, statement: ast.stmt, edits: Iterable[Edit]) -> str:
        """Return the text of a module-level statement with edits applied."""
        start, end = self._statements[statement]
        moved = [Edit(edit.start - start, edit.end - start, edit.text) for edit in edits]
        return _applied(self.data[start:end], moved).decode()

    def owner_of(self, edit: Edit) -> ast.AST:
        """Return the function whose code an edit changes, or the module.

        Decorators and defaults of a function belong to the code around it.
        """
        owner: ast.AST = self.tree
        for start, end, function in self._bodies:
            if start <= edit.start and edit.end <= end:
                owner = function  # inner functions come later
        return owner

    def where(self, edit: Edit) -> Where:
        """Return the line of an edit, with the range of what it replaces."""
        line, function = self.line_of(edit.start), getattr(self.owner_of(edit), "name", "<module>")
        start, end = (offset - self.offset(line, 0) for offset in (edit.start, edit.end))
        return Where(self.file, line, function, start, end)

    @functools.cached_property
    def _bodies(self) -> list[tuple[int, int, ast.AST]]:
        """The byte range of each statement or expression that is a function's body."""
        return [
            (*self.span(child), function)
            for function in ast.walk(self.tree)
            if isinstance(function, FUNCTIONS)
            for child in ast.iter_child_nodes(function)
            if isinstance(child, ast.expr | ast.stmt) and within_body(function, child)
        ]

    def applied(self, edits: Iterable[Edit]) -> str:
        """Return the text with these edits applied; they must not overlap."""
        return _applied(self.data, edits).decode()


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def within_body(function: ast.AST, child: ast.AST) -> bool:
    """Return whether a child of a function is part of its body, not of its definition."""
    body = getattr(function, "body", None)
    return child in body if isinstance(body, list) else child is body


def _applied(data: bytes, edits: Iterable[Edit]) -> bytes:
    for edit in sorted(edits, reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data


def _range(node: ast.expr | ast.keyword | ast.stmt) -> Range:
    last_line, end = node.end_lineno, node.end_col_offset
    assert last_line is not None
    assert end is not None
    return node.lineno, last_line, node.col_offset, end


def shown_path(file: str) -> str:
    """Return a path for a diff: relative if it is below the working directory."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith("..") else relative


def unified_diff(file: str, before: str, after: str) -> str:
    """Return the change of a file as a unified diff that `patch -p0` applies."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), file, file
    )
    ended = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
    return "".join(ended)

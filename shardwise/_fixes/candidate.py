"""A candidate: a few edits of one file, and how to write code that fits into that file."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy

from .source import Edit, Source


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Edits that may make a program right. Nothing is known of them until they are tried."""

    source: Source
    edits: tuple[Edit, ...]
    description: str
    """What the edits do, as an instruction: "sum `h @ w` over 'model'"."""
    rank: float
    """Candidates with a low rank are tried first."""

    @property
    def text(self) -> str:
        """Return the edited file."""
        return self.source.applied(self.edits)

    @property
    def size(self) -> int:
        """Count the bytes that are replaced or new."""
        return sum(edit.end - edit.start + len(edit.text) for edit in self.edits)

    def overlaps(self, other: Candidate) -> bool:
        """Whether the edits of two candidates cannot be made together."""
        return any(
            (a.start < b.end and b.start < a.end) or a.start == b.start
            for a in self.edits
            for b in other.edits
        )

    def joined(self, other: Candidate) -> Candidate:
        """Return both candidates as one."""
        return Candidate(
            self.source,
            (*self.edits, *other.edits),
            f"{self.description}; {other.description}",
            self.rank + other.rank,
        )


class Writer:
    """Writes expressions in the manner of a file: its name for `jax.lax`, its quotes."""

    def __init__(self, source: Source, names: Mapping[str, Any]):
        """`names` are the globals of the functions of the file."""
        self.source = source
        self.lax = _name_of(names, jax.lax) or "jax.lax"
        self.jnp = _name_of(names, jax.numpy) or "jax.numpy"
        self.nn = _name_of(names, jax.nn) or "jax.nn"
        self.quote = "'" if source.text.count("'") > 2 * source.text.count('"') else '"'

    def axes(self, names: Sequence[str]) -> str:
        """Write axis names as the argument of a collective."""
        quoted = [f"{self.quote}{name}{self.quote}" for name in names]
        return quoted[0] if len(quoted) == 1 else f"({', '.join(quoted)})"

    def call(self, name: str, value: str, axes: Sequence[str], rest: str = "") -> str:
        """Write a collective of a value."""
        return f"{self.lax}.{name}({value}, {self.axes(axes)}{rest})"

    def operand(self, node: ast.expr, instead_of: ast.expr) -> str:
        """Write an expression to stand where another one stands, in parentheses if needed."""
        text = self.source.text_of(node)
        around = self.source.parents.get(instead_of)
        loose = isinstance(node, LOOSE)
        tight = isinstance(around, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Compare) or (
            isinstance(around, ast.Subscript) and around.value is instead_of
        )
        return f"({text})" if loose and tight else text


LOOSE = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.Tuple)


def _name_of(names: Mapping[str, Any], module: Any) -> str | None:
    """Return what a file calls a module of JAX's; None where it does not import it."""
    own = (name for name, value in names.items() if value is module)
    if (name := next(own, None)) is not None or module is jax:
        return name
    outer = _name_of(names, jax)
    return f"{outer}.{module.__name__.removeprefix('jax.')}" if outer else None


def import_edit(source: Source) -> Edit:
    """Return the edit that imports jax, after the docstring and `from __future__` lines."""
    last = 0
    for statement in source.tree.body:
        alone = statement.value if isinstance(statement, ast.Expr) else None
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (isinstance(alone, ast.Constant) or future):
            break
        last = source.span(statement)[1] + 1
    return Edit(last, last, "import jax\n")


def shown(text: str) -> str:
    """Return source text for a sentence: one line, shortened."""
    line = " ".join(text.split())
    return f"`{line if len(line) <= 48 else line[:45] + '...'}`"

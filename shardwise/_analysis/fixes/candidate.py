"""A candidate fix: a few edits of one file, written in the style of that file."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy

from .source import Edit, Source


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """Edits that may make a program right; to be verified."""

    source: Source
    edits: tuple[Edit, ...]
    description: str
    """What the edits do, as an instruction: "sum `h @ w` over 'model'"."""
    rank: float
    """Candidates with a low rank are tried first."""
    alone: Candidate | None = None
    """A part of the edits that may suffice: tried once all of them are proved."""

    @property
    def text(self) -> str:
        """The text of the edited file."""
        return self.source.applied(self.edits)

    @functools.cached_property
    def lines(self) -> frozenset[int]:
        """The lines that are edited."""
        return frozenset(self.source.line_of(edit.start) for edit in self.edits)

    @property
    def gaining_collectives(self) -> set[ast.AST]:
        """The functions in which there are more collectives than before."""
        source = self.source
        return {
            source.owner_of(edit)
            for edit in self.edits
            if _collectives(edit.text) > _collectives(source.data[edit.start : edit.end].decode())
        }

    @property
    def size(self) -> int:
        """The number of bytes that are replaced or new."""
        return sum(edit.end - edit.start + len(edit.text) for edit in self.edits)

    def overlaps(self, other: Candidate) -> bool:
        """Return whether the edits of two candidates cannot be combined."""
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


COLLECTIVES = re.compile(
    r"\b(psum|pmean|pmax|pmin|all_gather|psum_scatter|all_to_all|ppermute|pcast|axis_index|axis_size)\b"
)


def _collectives(text: str) -> int:
    return len(COLLECTIVES.findall(text))


class Writer:
    """Writes expressions in the style of a file: its names for JAX functions, its quotes."""

    def __init__(self, source: Source, names: Mapping[str, Any]):
        """Set up for a file; `names` are the globals of its functions."""
        self.source = source
        self._names = {id(value): name for name, value in names.items() if callable(value)}
        self._lax = _name_of(names, jax.lax)
        self.jnp = _name_of(names, jax.numpy) or "jax.numpy"
        self.nn = _name_of(names, jax.nn) or "jax.nn"
        self.quote = "'" if source.text.count("'") > 2 * source.text.count('"') else '"'

    def lax(self, name: str) -> str:
        """Write the name of a function of `jax.lax` as the file imports it."""
        bare = self._names.get(id(getattr(jax.lax, name)))
        if bare is not None:
            return bare
        if self._lax is None and lax_import(self.source) is not None:
            return name
        return f"{self._lax or 'jax.lax'}.{name}"

    def axes(self, names: Sequence[str]) -> str:
        """Write axis names as the argument of a collective."""
        quoted = [f"{self.quote}{name}{self.quote}" for name in names]
        return quoted[0] if len(quoted) == 1 else f"({', '.join(quoted)})"

    def call(self, name: str, value: str, axes: Sequence[str], rest: str = "") -> str:
        """Write a collective call."""
        return f"{self.lax(name)}({value}, {self.axes(axes)}{rest})"

    def operand(self, node: ast.expr, instead_of: ast.expr) -> str:
        """Write an expression that replaces another one, in parentheses if needed."""
        text = self.source.text_of(node)
        parent = self.source.parents.get(instead_of)
        loose = isinstance(node, LOOSE)
        tight = isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Compare) or (
            isinstance(parent, ast.Subscript) and parent.value is instead_of
        )
        return f"({text})" if loose and tight else text

    def grouped(self, instead_of: ast.expr, text: str) -> str:
        """Put replacement text in parentheses if its position requires them."""
        parent = self.source.parents.get(instead_of)
        tight = isinstance(parent, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript)
        return f"({text})" if tight and isinstance(_parsed(text), LOOSE) else text


LOOSE = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda, ast.Tuple)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _name_of(names: Mapping[str, Any], module: Any) -> str | None:
    """Return the name of a JAX module in a file; None if the file does not import it."""
    names_of_module = (name for name, value in names.items() if value is module)
    if (name := next(names_of_module, None)) is not None or module is jax:
        return name
    outer = _name_of(names, jax)
    return f"{outer}.{module.__name__.removeprefix('jax.')}" if outer else None


def lax_import(source: Source) -> ast.ImportFrom | None:
    """Return the statement `from jax.lax import ...` of a file, if there is one."""
    return next(
        (
            statement
            for statement in source.tree.body
            if isinstance(statement, ast.ImportFrom) and statement.module == "jax.lax"
        ),
        None,
    )


def import_edits(candidate: Candidate, names: Mapping[str, Any]) -> list[Edit]:
    """Return the edits that import names which a candidate uses and its file lacks."""
    source = candidate.source
    needed = {name for edit in candidate.edits for name in edit.names} - {*names}
    imports = []
    if "jax" in needed:
        imports.append(_import_of_jax(source))
    statement = lax_import(source)
    lacking = sorted(
        name for name in needed if hasattr(jax.lax, name) and name not in _names(source)
    )
    if statement is not None and lacking:
        last_alias = statement.names[-1]
        assert last_alias.end_col_offset is not None
        end = source.offset(last_alias.end_lineno or last_alias.lineno, last_alias.end_col_offset)
        imports.append(Edit(end, end, "".join(f", {name}" for name in lacking)))
    return imports


def _names(source: Source) -> set[str]:
    return {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}


def _import_of_jax(source: Source) -> Edit:
    """Return the edit that imports jax, after the docstring and `from __future__` lines."""
    position = 0
    for statement in source.tree.body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (isinstance(value, ast.Constant) or future):
            break
        position = source.span(statement)[1] + 1
    return Edit(position, position, "import jax\n")


def shown(text: str) -> str:
    """Shorten source text to one line for a sentence."""
    line = " ".join(text.split())
    return f"`{line if len(line) <= 48 else line[:45] + '...'}`"

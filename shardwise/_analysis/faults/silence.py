"""Silence findings by comments in the source: `# shardwise: ignore[SW203]`.

The comment stands on a line of the statement that the finding is about, or alone on the line above
it. A finding without a line is silenced where the program, or the case, is defined. Silenced
findings are not lost: verdicts and proofs keep and count them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import linecache
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from .fault import canonical
from .finding import Finding

Place = tuple[str, int]
"""A file and a line number in it."""

COMMENT = re.compile(r"#\s*shardwise:\s*ignore(?:\[([^\]]*)\])?")


@dataclasses.dataclass(frozen=True)
class Ignore:
    """A comment that silences: its line, the codes it names, and the lines it covers."""

    file: str
    line: int
    codes: tuple[str, ...]
    covers: range

    def silences(self, finding: Finding, line: int) -> bool:
        """Return whether it silences a finding at that line of its file."""
        return line in self.covers and finding.code in map(canonical, self.codes)


def ignores_in(file: str) -> tuple[Ignore, ...]:
    """Return the ignore comments of a file, in order."""
    return _ignores(file, tuple(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def _ignores(file: str, lines: tuple[str, ...]) -> tuple[Ignore, ...]:
    # Most files have none and need not be parsed.
    if not any(COMMENT.search(line) for line in lines):
        return ()
    source = "".join(lines)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        statements = _statements(ast.parse(source))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ()
    ignores = []
    for token in tokens:
        # One line may hold comments for several tools.
        for match in COMMENT.finditer(token.string) if token.type == tokenize.COMMENT else ():
            line = token.start[0]
            about = _next_line(lines, line) if token.line.strip() == token.string else line
            covers = next((span for span in statements if about in span), range(about, about + 1))
            codes = tuple(code.strip() for code in (match[1] or "").split(",") if code.strip())
            ignores.append(Ignore(file, line, codes, covers))
    return tuple(ignores)


def _next_line(lines: Sequence[str], line: int) -> int:
    """Return the first line of code below a comment that stands alone."""
    for number in range(line + 1, len(lines) + 1):
        text = lines[number - 1].strip()
        if text and not text.startswith("#"):
            return number
    return line


def _statements(tree: ast.AST) -> list[range]:
    """Return the lines of each statement; for a compound statement, the lines of its header.

    The shortest come first, so that a line is assigned to the innermost statement.
    """
    ranges = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        start, inner = _first_line(node), _held(node)
        end = _first_line(inner) - 1 if inner is not None else node.end_lineno or node.lineno
        ranges.append(range(start, max(start, end) + 1))
    return sorted(ranges, key=len)


def _first_line(node: Any) -> int:
    return min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])


def _held(node: ast.stmt) -> ast.AST | None:
    """Return the first statement inside a compound one, or the first pattern of a `match`."""
    if isinstance(node, ast.Match):
        return node.cases[0].pattern
    return next(iter(getattr(node, "body", [])), None)


def ignore_of(finding: Finding, places: Iterable[Place] = ()) -> Ignore | None:
    """Return the comment that silences a finding: at its own line, or at one of the places."""
    where = finding.where
    for file, line in [(where.file, where.line)] if where.file else places:
        for ignore in ignores_in(file):
            if ignore.silences(finding, line):
                return ignore
    return None


_AROUND: ContextVar[tuple[frozenset[str], tuple[Place, ...]]] = ContextVar(
    "silenced", default=(frozenset(), ())
)


@contextlib.contextmanager
def silencing(codes: Iterable[str], *places: Place) -> Iterator[None]:
    """Silence these codes, and what comments at these places name, inside the context.

    This applies before the verdict, so that silenced findings explain nothing and blame no mesh.
    """
    token = _AROUND.set((frozenset(map(canonical, codes)), places))
    try:
        yield
    finally:
        _AROUND.reset(token)


def split_silenced(
    findings: Iterable[Finding], places: Sequence[Place]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Split findings into those that remain and those silenced by a comment or a setting."""
    codes, outer_places = _AROUND.get()
    remaining, silenced = [], []
    for finding in findings:
        quiet = finding.code in codes or ignore_of(finding, (*places, *outer_places)) is not None
        (silenced if quiet else remaining).append(finding)
    return tuple(remaining), tuple(silenced)


def place_of(f: Callable[..., Any]) -> list[Place]:
    """Return where a function is defined, for findings without a line."""
    while isinstance(f, functools.partial):
        f = f.func
    f = inspect.unwrap(f)
    code = getattr(f, "__code__", None) or getattr(vars(type(f)).get("__call__"), "__code__", None)
    return [(code.co_filename, code.co_firstlineno)] if code is not None else []

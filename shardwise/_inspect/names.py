"""The names that values have in the source.

A value carries the line and column of the call that made it. The statement around that place says
what the result is called: `y = psum(x)` calls the last value of the statement `y`. Inputs of a
`shard_map` have the names of the body's parameters, which JAX keeps with the traced body.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable, Sequence
from typing import Any

from .. import _jax
from .._program import Op, Split, Where


@functools.lru_cache(maxsize=32)
def _statements(file: str, size: int) -> dict[int, ast.stmt]:
    """For each line of a file the innermost simple statement on it."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                known = found.get(line)
                if known is None or known.lineno <= node.lineno:
                    found[line] = node
    return found


def statement_of(where: Where) -> ast.stmt | None:
    """The statement that a place belongs to."""
    lines = linecache.getlines(where.file) if where.file else []
    return _statements(where.file, len(lines)).get(where.line) if lines else None


def name_of(statement: ast.stmt | None) -> str:
    """What a statement calls its value: a variable, or `return`."""
    match statement:
        case ast.Assign(value=ast.Lambda()):
            return "return"
        case ast.Assign(targets=[target]):
            return ast.unparse(target).strip("()")
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return ast.unparse(target)
        case ast.Return():
            return "return"
    return ""


def names(ops: Sequence[tuple[Op, tuple[int, ...]]]) -> list[str]:
    """A name for each operation, given in program order with the turn it belongs to.

    The last operation of a statement has the statement's name. A statement that is met again
    later, because other lines were run in between, is a new one.
    """
    statements = [_inside(op) for op, _ in ops]
    found = []
    for index, (op, turn) in enumerate(ops):
        own = statements[index]
        after = index + 1 < len(ops) and statements[index + 1] is own and ops[index + 1][1] == turn
        last = own is not None and not after and not op.backward
        found.append(name_of(own) if last else "")
    return found


def _inside(op: Op) -> ast.stmt | None:
    return None if op.backward else statement_of(op.where)


def parameters(jaxpr: Any, ops: Iterable[Op]) -> dict[int, str]:
    """The names of the body's parameters, for the `Split` of each input (by its identity)."""
    bodies = dict(_jax.shard_map_arguments(jaxpr))
    splits: dict[int, list[Split]] = {}
    for op in ops:
        if isinstance(op, Split):
            splits.setdefault(id(op.source), []).append(op)
    found: dict[int, str] = {}
    for source, own in splits.items():
        arguments = [name for name, is_split in bodies.get(source, ()) if is_split]
        if len(arguments) == len(own):
            found |= {id(op): name for op, name in zip(own, arguments, strict=True)}
    return found

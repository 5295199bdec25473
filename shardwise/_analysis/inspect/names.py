"""The names that values have in the source.

A value carries the line and column of the call that made it. The statement around that place says
what the result is called: `y = psum(x)` calls what comes out of the statement `y`. Inputs of a
`shard_map` have the names of the body's parameters, which JAX keeps with the traced body.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence

from ... import _jax
from ..._program import Op, Split, Where
from .seen import StackedResult, Uses


@functools.lru_cache(maxsize=32)
def _statements(file: str, size: int) -> dict[int, ast.stmt]:
    """For each line of a file the innermost simple statement on it."""
    source = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    statements: dict[int, ast.stmt] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            for line in _lines(node):
                current = statements.get(line)
                if current is None or current.lineno <= node.lineno:
                    statements[line] = node
    return statements


def statement_of(where: Where) -> ast.stmt | None:
    """Return the statement that a place belongs to."""
    lines = linecache.getlines(where.file) if where.file else []
    return _statements(where.file, len(lines)).get(where.line) if lines else None


def name_of(statement: ast.stmt | None) -> str:
    """Return what a statement calls its value: a variable, or `return`."""
    match statement:
        case ast.Assign(value=ast.Lambda()):
            return "return"
        case ast.Assign(targets=[ast.Tuple(elts=parts)]):
            return ", ".join(map(ast.unparse, parts))
        case ast.Assign(targets=[target]):
            return ast.unparse(target)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return ast.unparse(target)
        case ast.Return():
            return "return"
    return ""


def gives(statement: ast.stmt, op: Op) -> bool:
    """Return whether an operation is made by the expression that a statement names, not inside it.

    In `y = f(2 * x)` the product is not `y`.
    """
    expressions = _expressions(statement)
    return not expressions or any(_is(frame, node) for frame in _frames(op) for node in expressions)


def _frames(op: Op) -> Iterator[_jax.Frame]:
    """Yield the frames around an operation, as far as the call of a derivative that it is made
    for."""
    for source in filter(None, (op.source, *op.calls)):
        frames = list(_jax.user_frames(source))
        derivative = next(_jax.derivative_frames(source), None)
        yield from frames[: -len(derivative[1])] if derivative else frames
        if derivative:
            return


def _expressions(statement: ast.AST | None) -> list[ast.stmt | ast.expr]:
    """Return the expressions whose values a statement gives; none where that is not plain to
    see."""
    match statement:
        case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.Expr() | ast.Starred():
            return _expressions(statement.value)
        case ast.Lambda():
            return _expressions(statement.body)
        case ast.Tuple() | ast.List():
            return [node for element in statement.elts for node in _expressions(element)]
        case ast.Dict():
            return [node for element in statement.values for node in _expressions(element)]
        case ast.AugAssign() | ast.Call() | ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return [statement]
        case ast.Attribute() | ast.Subscript():
            return [statement]
    return []


def _is(frame: _jax.Frame, node: ast.stmt | ast.expr) -> bool:
    """Return whether a frame stands at an expression: a call over several lines begins at a later
    one."""
    if frame.end_column != node.end_col_offset:
        return False
    first = frame.line == node.lineno
    return frame.column == node.col_offset if first else frame.line in _lines(node)


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def names(values: Sequence[StackedResult], uses: Uses) -> list[str]:
    """Return a name for each value, given in program order.

    What comes out of a statement's expression, and is needed elsewhere, has the statement's name;
    where nothing is, its last value has it. A statement that is met again later, because other
    lines were run in between, is a new one. What only a derivative speaks of has no name.
    """
    labels = [""] * len(values)
    forward = [i for i, value in enumerate(values) if value.var not in uses.residuals]
    for (statement, _), run in itertools.groupby(forward, lambda i: _statement(values[i], uses)):
        group = [i for i in run if statement is not None and gives(statement, values[i].op)]
        ops = {id(values[i].op) for i in group}
        needed = [i for i in group if uses.needed(values[i].var, ops)]
        for i in needed or group[-1:]:
            labels[i] = name_of(statement)
    return labels


def _statement(result: StackedResult, uses: Uses) -> tuple[ast.stmt | None, tuple[int, ...]]:
    unnamed = uses.backward(result.op) or isinstance(result.op, Split)
    return None if unnamed else statement_of(result.op.where), result.around.iteration

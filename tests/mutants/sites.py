"""Where a bug can be planted in a source file, and the file with the bug in it."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one expression."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str
    kind: str

    def planted(self, source: bytes) -> bytes:
        """Return the source with the change made; offsets are in bytes."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.before} -> {self.after}"


def mutants(root: Path, file: str) -> Iterator[Mutant]:
    """Yield every change of a file, in the order of its lines."""
    source = (root / file).read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in _inside_functions(ast.parse(source)):
        for kind, changed in _changes(node):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            before, after = source[start:end].decode(), f"({ast.unparse(changed)})"
            yield Mutant(file, node.lineno, start, end, " ".join(before.split()), after, kind)


def _inside_functions(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions of function bodies and of constants of a module.

    Not those of annotations, decorators and docstrings, nor what is inside an f-string: most of
    that is wording.
    """
    for statement in ast.walk(tree):
        if isinstance(statement, ast.FunctionDef):
            roots: Sequence[ast.AST] = statement.body
        elif isinstance(statement, ast.Module):
            roots = [s.value for s in statement.body if isinstance(s, ast.Assign)]
        else:
            continue
        for root in roots:
            yield from _expressions(root)


SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.FunctionDef, ast.ClassDef, ast.arguments)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, SKIPPED):
        return
    if isinstance(node, ast.expr):
        yield node
    fields = ("annotation",) if isinstance(node, ast.AnnAssign) else ()
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in fields:
                yield from _expressions(child)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            yield "comparison", ast.Compare(node.left, [COMPARED[type(op)]()], node.comparators)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and, or", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node.operand
        case ast.BinOp() if type(node.op) in COMPUTED:
            yield "arithmetic", ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=float(value)):
            yield "tolerance", ast.Constant(value * 100 or 1.0)
        case ast.Constant(value=int(value)) if value < 1000:
            yield "constant", ast.Constant(value + 1)
        case ast.IfExp():
            yield "branches", ast.IfExp(node.test, node.orelse, node.body)
        case ast.Call(func=ast.Name(id="any" | "all" as name), args=args):
            other = "all" if name == "any" else "any"
            yield "any, all", ast.Call(ast.Name(other), args, node.keywords)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            other = "max" if name == "min" else "min"
            yield "min, max", ast.Call(ast.Name(other), args, node.keywords)


def draw(root: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants, of as many files and kinds as there are, the same for a seed."""
    chosen: list[Mutant] = []
    rng = random.Random(seed)
    left = {file: list(mutants(root, file)) for file in files}
    for found in left.values():
        rng.shuffle(found)
    used = dict.fromkeys((m.kind for found in left.values() for m in found), 0)
    while len(chosen) < count and any(left.values()):
        for file in sorted(left, key=lambda file: rng.random()):
            if left[file] and len(chosen) < count:
                mutant = min(left[file], key=lambda m: used[m.kind])
                left[file].remove(mutant)
                used[mutant.kind] += 1
                chosen.append(mutant)
    return chosen

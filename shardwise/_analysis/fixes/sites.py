"""Find the places in the source that an edit may change, from the operations of a program."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ... import _jax
from ..._program import Atom, Body, Join, Op, Split, Var, is_user_file, live, walk
from .live import outside_functions
from .source import Source

SPECS = {"P", "PartitionSpec"}
GRADIENTS = {"grad", "value_and_grad", "vjp", "jacrev"}


class Sources:
    """A cache of the user's files."""

    def __init__(self) -> None:
        self._read: dict[str, Source | None] = {}

    def __getitem__(self, file: str) -> Source | None:
        if file not in self._read:
            self._read[file] = Source.read(file) if is_user_file(file) else None
        return self._read[file]

    def expressions(self, op: Op) -> Iterator[tuple[Source, ast.expr]]:
        """Yield the user's expressions that an operation was traced from, innermost first."""
        for origin in (op.source, *op.calls):
            for frame in _jax.user_frames(origin) if origin is not None else ():
                source = self[frame.file]
                place = frame.line, frame.end_line, frame.column, frame.end_column
                node = source.expression_at(place) if source else None
                if source is not None and node is not None:
                    yield source, node


@dataclasses.dataclass(frozen=True, eq=False)
class Sites:
    """The places in one file that an edit may change, the most likely first."""

    source: Source
    named: Sequence[ast.expr]
    """The expressions that the evidence names, their parts, and those around them."""
    others: Sequence[ast.expr]
    """All other expressions computed inside a `shard_map`."""
    functions: frozenset[ast.AST]
    """The functions that contain them."""
    outside: frozenset[ast.AST]
    """The functions that call `shard_map`, and the module: collectives are not allowed there."""
    values: Mapping[ast.expr, Var]
    """The values of the expressions on the mesh."""
    whole: Mapping[ast.expr, Var]
    """Their values on one device."""

    def nodes(self, outside: bool = False) -> list[ast.AST]:
        """Return all nodes of the functions, each once; with `outside` also module-level code."""
        nodes = dict.fromkeys(node for function in self.functions for node in ast.walk(function))
        if outside:
            nodes |= dict.fromkeys(outside_functions(self.source.tree))
        return [*nodes]

    def keywords(self) -> list[ast.keyword]:
        """Return all keyword arguments, including those of decorators and constants."""
        return [node for node in self.nodes(outside=True) if isinstance(node, ast.keyword)]

    def specs(self) -> list[ast.Call]:
        """Return the partition specs written in the file."""
        return [
            node
            for node in self.nodes(outside=True)
            if isinstance(node, ast.Call) and called(node) in SPECS
        ]

    def calls(self, names: set[str]) -> list[ast.Call]:
        """Return the calls of functions with these names, those that the evidence names first."""
        calls = [
            node for node in self.nodes() if isinstance(node, ast.Call) and called(node) in names
        ]
        order = {id(node): index for index, node in enumerate([*self.named, *self.others])}
        return sorted(calls, key=lambda node: (order.get(id(node), 1 << 20), node.lineno))


def called(node: ast.expr) -> str:
    """Return the last part of a called name: `psum` for `jax.lax.psum(x, "data")`."""
    func = node.func if isinstance(node, ast.Call) else node
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def is_module(node: ast.expr) -> bool:
    """Return whether an expression is a module: `jnp` in `jnp.mean`, `jnp.linalg` in its `norm`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("jnp", "np", "numpy", "jax", "optax")


def sites_of(
    body: Body,
    wrong: Sequence[Atom],
    evidence: Iterable[Op],
    sources: Sources,
    whole: Mapping[ast.expr, Var],
) -> list[Sites]:
    """Return the places of a program that edits may change, for each file of the user.

    Only operations that the `wrong` results depend on are considered.
    """
    named: dict[Source, dict[ast.expr, None]] = {}
    others: dict[Source, dict[ast.expr, None]] = {}
    for op in evidence:
        for source, node in sources.expressions(op):
            nearby = named.setdefault(source, {})
            nearby |= dict.fromkeys([node, *source.around(node)])
            nearby |= dict.fromkeys(_inside(node))
    for op in walk(live(body.ops, [*wrong])):
        if op.scope or isinstance(op, Split | Join):
            for source, node in sources.expressions(op):
                others.setdefault(source, {})[node] = None
    values, outside = values_of(body, sources), _outside(body, sources)
    sites = []
    for source, nodes in ({source: {} for source in others} | named).items():
        extra = others.get(source, {})
        functions = {*map(source.function_around, [*nodes, *extra])} - {source.tree}
        sites.append(
            Sites(source, [*nodes], [*extra], frozenset(functions), outside, values, whole)
        )
    return sites


def _outside(body: Body, sources: Sources) -> frozenset[ast.AST]:
    """Return the functions that only call `shard_map`; none if one `shard_map` is in another."""
    mapped = [op for op in walk(body.ops) if isinstance(op, Split | Join)]
    if len({op.scope for op in mapped}) > 1:
        return frozenset()
    calls = {place for op in mapped for place in sources.expressions(op)}
    scoped = (op for op in walk(body.ops) if op.scope and not isinstance(op, Split | Join))
    inside = {place for op in scoped for place in sources.expressions(op)} - calls
    around, within = (
        {source.function_around(node) for source, node in places} for places in (calls, inside)
    )
    return frozenset(around - within)


def values_of(body: Body, sources: Sources) -> dict[ast.expr, Var]:
    """Return the value of each expression of the user: the last one computed in it."""
    return {
        node: op.outs[0]
        for op in walk(body.ops)
        if op.outs and not op.backward
        for _, node in sources.expressions(op)
    }


def _inside(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the calls and binary operations inside an expression."""
    for child in ast.walk(node):
        if child is not node and isinstance(child, ast.Call | ast.BinOp):
            yield child

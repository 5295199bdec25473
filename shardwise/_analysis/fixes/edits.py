"""The catalogue of edits: each function yields candidates for one kind of mistake.

No candidate is trusted. One is shown only after the edited program was proved, or checked, to
compute what the original program computes on one device; so the catalogue may guess freely, and
its ranks only decide what is tried first.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .candidate import Candidate, Writer, shown
from .sites import SPECS, Sites, called
from .source import Edit, Source

WORDS = {
    "psum": "sum",
    "pmean": "average",
    "pmax": "take the maximum of",
    "pmin": "take the minimum of",
}
REDUCTIONS = ("psum", "pmean", "pmax", "pmin")
BY_FUNCTION = {
    **dict.fromkeys(("max", "amax", "nanmax"), ("pmax", "psum")),
    **dict.fromkeys(("min", "amin", "nanmin"), ("pmin", "psum")),
    **dict.fromkeys(("mean", "average"), ("pmean", "psum")),
}
"""The reductions over devices that match a function of local values, in order of likelihood."""


@dataclasses.dataclass(frozen=True)
class WrongShape:
    """A result that has a wrong shape."""

    path: str
    got: Sequence[tuple[Mapping[str, int], tuple[int, ...]]]
    """Its shape on each mesh, the largest mesh last."""
    want: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class EditContext:
    """The context of a search for edits: the places, the axes and the evidence."""

    sites: Sites
    names: Mapping[str, Any]
    """The globals of the file."""
    axes: Sequence[tuple[str, ...]]
    """The combinations of mesh axes to try, the likely ones first."""
    ratio: float | None = None
    """The factor by which the first wrong result is off, if the analysis knows it."""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """The sizes of the mesh axes."""
    shares: Sequence[ast.expr] = ()
    """The expressions that compute a share of something, in program order."""
    unsummed: bool = False
    """Whether a gradient is a share, so that a reduction is missing."""
    unchecked: bool = False
    """Whether the program has a `shard_map` with `check_vma=False`."""
    is_open: bool = False
    """Whether the analysis cannot say what is wrong: positions and counts are then more likely."""
    misplaced: bool = False
    """Whether a result is joined along other dimensions than it is split: wrong `out_specs`."""
    returned: bool = False
    """Whether a result is what one device has of it."""
    shapes: Sequence[WrongShape] = ()
    """The results with a wrong shape: the path, the shape, and what it should be."""
    reference: Sequence[tuple[Source, ast.expr]] = ()
    """The expressions of the reference, if there is one."""
    is_wrong_alone: bool = False
    """Whether the program differs from the reference on one device already."""
    draws: bool = False
    """Whether a result depends on random numbers that follow the sharding."""

    @property
    def is_multiple(self) -> bool:
        """Whether a whole value is too large: no sum is missing, and no mean is superfluous.

        Without the check of `shard_map` a derivative may be a multiple for other reasons.
        """
        return (self.ratio or 0) > 1 and not self.unchecked

    @functools.cached_property
    def writer(self) -> Writer:
        """The writer for the file."""
        return Writer(self.sites.source, self.names)

    def varies(self, node: ast.expr, axes: Sequence[str]) -> bool:
        """Return whether a value may differ along axes; otherwise there is nothing to reduce.

        A result that is too small may lack even a sum of equal values.
        """
        var = self.sites.values.get(node)
        lacks = self.ratio is not None and self.ratio < 1
        return var is None or lacks or {*axes} <= {axis.name for axis in var.axes}

    def make(self, edits: Sequence[Edit], description: str, rank: float) -> Candidate:
        """Make a candidate."""
        return Candidate(self.sites.source, tuple(edits), description, rank)


def reduce_value(r: EditContext) -> Iterator[Candidate]:
    """Reduce a value over devices where it is computed, used or returned."""
    write, source = r.writer, r.sites.source
    usual = ("pmean", "psum") if r.ratio is not None and r.ratio > 1 else ("psum", "pmean")
    nodes = [*r.sites.named, *r.sites.others]
    for i, node in enumerate(dict.fromkeys(nodes)):
        if not is_value(node, source.parents.get(node)):
            continue
        distance = 0.25 * i if i < len(r.sites.named) else 6 + 0.25 * (i - len(r.sites.named))
        names = BY_FUNCTION.get(called(node), usual)
        pairs = [(axes, name) for axes in r.axes if r.varies(node, axes) for name in names]
        for nth, (axes, name) in enumerate(pairs):
            text = source.text_of(node)
            described = f"{WORDS[name]} {shown(text)} over {write.axes(axes)}"
            forms = [text, f"{write.lax('stop_gradient')}({text})"]
            for extra, value in enumerate(forms if name in ("pmax", "pmin") else forms[:1]):
                edit = source.replace(node, write.call(name, value, axes))
                late = 2 if r.is_open else 0
                yield r.make([edit], described, 3 + late + distance + 0.4 * nth + 0.1 * extra)


def reduce_returned(r: EditContext) -> Iterator[Candidate]:
    """Reduce a named value where it is returned, after it was differentiated or unpacked."""
    if not r.returned:
        return
    write, source = r.writer, r.sites.source
    means = any(called(node) in ("mean", "average") for node in r.sites.named)
    returns = (node for node in r.sites.nodes() if isinstance(node, ast.Return))
    values = (v for node in returns for v in getattr(node.value, "elts", [node.value]))
    for i, value in enumerate(value for value in values if isinstance(value, ast.Name)):
        for axes in r.axes:
            for nth, name in enumerate(("pmean", "psum") if means else ("psum", "pmean")):
                text = f"{WORDS[name]} `{value.id}` over {write.axes(axes)} where it is returned"
                edit = source.replace(value, write.call(name, value.id, axes))
                yield r.make([edit], text, 2.2 + 0.25 * i + 0.4 * nth)


def remove_reduction(r: EditContext) -> Iterator[Candidate]:
    """Remove a reduction of a value that is already reduced."""
    source, write = r.sites.source, r.writer
    for i, node in enumerate(r.sites.calls({"psum", "pmean", "pmax", "pmin"})):
        if node.args:
            edit = source.replace(node, write.operand(node.args[0], node))
            axis_text = source.text_of(axis) if (axis := axis_of(node)) else ""
            likely = (r.ratio or 0) > 1 and not (called(node) == "pmean" and r.is_multiple)
            rank = 2 + 0.5 * i + (0 if likely else 2)
            yield r.make([edit], f"remove the {called(node)} over {axis_text}", rank)


def replace_reduction(r: EditContext) -> Iterator[Candidate]:
    """Sum instead of averaging, or average instead of summing."""
    for i, node in enumerate(r.sites.calls({*REDUCTIONS})):
        extreme = called(node) in ("pmax", "pmin")
        for nth, name in enumerate(kind for kind in REDUCTIONS if kind != called(node)):
            edit = renamed(r, node.func, name)
            text = f"use {name} instead of {called(node)}"
            likely = r.ratio is not None and not (name == "psum" and r.is_multiple)
            if extreme and r.shares and name in ("psum", "pmean"):  # of each device's own share
                rank = 2.1 + 0.5 * i + 0.2 * nth
            else:
                rank = 2.1 + 0.5 * i + nth + (0 if likely else 1.5)
            yield r.make([edit], text, rank)


def renamed(r: EditContext, function: ast.expr, name: str) -> Edit:
    """Return the edit that replaces one function of `jax.lax` by another."""
    text = r.sites.source.text_of(function)
    is_attribute = isinstance(function, ast.Attribute)
    text = text.removesuffix(called(function)) + name if is_attribute else r.writer.lax(name)
    return r.sites.source.replace(function, text)


def change_axes(r: EditContext) -> Iterator[Candidate]:
    """Reduce over other axes."""
    source, write = r.sites.source, r.writer
    every = list(dict.fromkeys(name for axes in r.axes for name in axes))
    if len(every) < 2:
        return
    options = [c for n in range(1, len(every) + 1) for c in itertools.combinations(every, n)]
    for i, node in enumerate(r.sites.calls({"psum", "pmean", "pmax", "pmin", "all_gather"})):
        axis = axis_of(node)
        if axis is None:
            continue
        for nth, axes in enumerate(options):
            if write.axes(axes) != source.text_of(axis):
                edit = source.replace(axis, write.axes(axes))
                text = f"{called(node)} over {write.axes(axes)} instead of {source.text_of(axis)}"
                yield r.make([edit], text, 3 + 0.5 * i + 0.3 * nth)


def uses(sites: Sites, name: str) -> list[ast.expr]:
    """Return where a function is called or passed, starting with places named by the evidence."""
    calls = [node.func for node in sites.calls({name})]
    names = [node for node in sites.nodes() if isinstance(node, ast.Name | ast.Attribute)]
    passed = [node for node in names if called(node) == name]
    return list(dict.fromkeys([*calls, *passed]))


def add_after_reduction(r: EditContext) -> Iterator[Candidate]:
    """Add a bias after the reduction, which would otherwise count it once per device."""
    source, write = r.sites.source, r.writer
    for i, node in enumerate(r.sites.calls({"psum", "psum_scatter"})):
        axis = axis_of(node)
        if not node.args or axis is None:
            continue
        inner, outside = _sum_behind(r.sites, node.args[0])
        if inner is None or not isinstance(inner.op, ast.Add | ast.Sub):
            continue
        sign = "+" if isinstance(inner.op, ast.Add) else "-"
        for remaining, moved in ((inner.left, inner.right), (inner.right, inner.left)):
            if moved is inner.left and sign == "-":
                continue
            text = f"add {shown(source.text_of(moved))} after the {called(node)}, not before it"
            term = write.operand(moved, inner)
            call_text = source.text_of(node)
            if outside is None:
                (start, end), (first, stop) = source.span(node), source.span(inner)
                head, tail = source.data[start:first].decode(), source.data[stop:end].decode()
                call = f"{head}{source.text_of(remaining)}{tail}"
                edits = [source.replace(node, write.grouped(node, f"{call} {sign} {term}"))]
            else:
                edits = [
                    source.replace(inner, source.text_of(remaining)),
                    source.replace(node, write.grouped(node, f"{call_text} {sign} {term}")),
                ]
            yield r.make(edits, text, 2.4 + 0.5 * i)


def _sum_behind(sites: Sites, node: ast.expr) -> tuple[ast.BinOp | None, ast.expr | None]:
    """Return the sum that an expression is, or that its name was assigned, and where to edit it."""
    if isinstance(node, ast.BinOp):
        return node, None
    if isinstance(node, ast.Name):
        values = assigned(sites, node)
        if len(values) == 1 and isinstance(values[0], ast.BinOp):
            return values[0], values[0]
    return None, None


def assigned(sites: Sites, name: ast.Name) -> list[ast.expr]:
    """Return the values assigned to a name before its use in the surrounding function."""
    function = sites.source.function_around(name)
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and node.lineno <= name.lineno
        and any(isinstance(target, ast.Name) and target.id == name.id for target in node.targets)
    ]


def reduce_both_parts(r: EditContext) -> Iterator[Candidate]:
    """Reduce numerator and denominator separately, and divide once."""
    source, write = r.sites.source, r.writer
    nodes = dict.fromkeys([*r.sites.named, *r.sites.others])
    quotients = [
        node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    ]
    reductions = r.sites.calls({"pmean", "psum"})
    for i, node in enumerate(quotients):
        for axes in r.axes:
            for below in _denominators(node.right):
                parts = [
                    source.replace(node.left, write.call("psum", source.text_of(node.left), axes)),
                    source.replace(below, write.call("psum", source.text_of(below), axes)),
                ]
                terms = " and ".join(shown(source.text_of(term)) for term in (node.left, below))
                text = f"sum {terms} over {write.axes(axes)} separately, and divide once"
                yield r.make(parts, text, 4 + 0.4 * i)
                for call in reductions:
                    edits = _unwrapped(r, call, node, parts)
                    if edits is not None:
                        yield r.make(edits, f"{text}; remove the {called(call)}", 3.5 + 0.4 * i)


def _unwrapped(
    r: EditContext, call: ast.Call, node: ast.BinOp, parts: list[Edit]
) -> list[Edit] | None:
    """Return the edits that also remove a reduction around the quotient."""
    source = r.sites.source
    if not call.args:
        return None
    start, end = source.span(call)
    inner = source.span(call.args[0])
    if all(start <= part.start and part.end <= end for part in parts) or not (
        start <= source.span(node)[0] < end
    ):
        return [Edit(start, inner[0], ""), *parts, Edit(inner[1], end, "")]
    return None


def _denominators(node: ast.expr) -> Iterator[ast.expr]:
    yield node
    for child in ast.walk(node):
        if child is not node and isinstance(child, ast.Call) and child.args:
            yield child


def axis_of(node: ast.Call) -> ast.expr | None:
    """Return the argument of a collective that names its axes."""
    by_keyword = [keyword.value for keyword in node.keywords if keyword.arg == "axis_name"]
    if by_keyword:
        return by_keyword[0]
    return node.args[1] if len(node.args) > 1 else None


def is_value(node: ast.expr, parent: ast.AST | None) -> bool:
    """Return whether a reduction can be written around an expression."""
    if isinstance(node, ast.Constant | ast.Starred | ast.Lambda | ast.Slice | ast.Tuple):
        return False
    if called(node) in SPECS:
        return False
    called_itself = isinstance(parent, ast.Call) and parent.func is node
    return not called_itself and not isinstance(parent, ast.keyword | ast.Attribute)


Generator = Callable[[EditContext], Iterator[Candidate]]

CATALOGUE: tuple[Generator, ...] = (
    remove_reduction,
    replace_reduction,
    add_after_reduction,
    change_axes,
    reduce_both_parts,
    reduce_returned,
    reduce_value,
)

"""Edits that rewrite an expression so that it applies to the whole array.

They change more than those in `edits` and are tried later.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator

from .candidate import Candidate, shown
from .edits import EditContext, assigned, axis_of
from .sites import called, is_module
from .source import Edit

DRAWS = {
    "bernoulli": 2,
    "normal": 1,
    "uniform": 1,
    "gumbel": 1,
    "exponential": 1,
    "laplace": 1,
    "truncated_normal": 3,
    "randint": 1,
    "bits": 1,
    "rademacher": 1,
}
"""The functions of `jax.random`, with the index of their shape argument."""


def move_reduction(r: EditContext) -> Iterator[Candidate]:
    """Reduce before a nonlinear function instead of after it."""
    source, write = r.sites.source, r.writer
    for i, node in enumerate(r.sites.calls({"psum", "pmean"})):
        axis = axis_of(node)
        if not node.args or axis is None:
            continue
        inner = node.args[0]
        values = [inner]
        if isinstance(inner, ast.Name):
            values += assigned(r.sites, inner)
        parts = [
            part
            for value in values
            for part in ast.walk(value)
            if isinstance(part, ast.Call | ast.BinOp) and part is not inner
        ]
        for nth, part in enumerate(parts):
            for name in ("psum", "pmean"):
                text = f"{write.lax(name)}({source.text_of(part)}, {source.text_of(axis)})"
                start, end = source.span(node)
                first, stop = source.span(inner)
                edits = [Edit(start, first, ""), source.replace(part, text), Edit(stop, end, "")]
                described = (
                    f"reduce {shown(source.text_of(part))} with {name} before it is used, not after"
                )
                rank = 4.5 + 0.5 * i + 0.2 * nth + (name != called(node)) * 0.1
                yield r.make(edits, described, rank)


PRODUCTS = ("dot", "matmul", "einsum", "tensordot", "dot_general")


def reduce_product(r: EditContext) -> Iterator[Candidate]:
    """Reduce a product of matrices, and not what another function computes from it."""
    source, write = r.sites.source, r.writer
    products = [
        node
        for node in r.sites.nodes()
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Call) and called(node) in PRODUCTS)
    ]
    for i, node in enumerate(r.sites.calls({"psum", "pmean"})):
        axis = axis_of(node)
        if not node.args or axis is None:
            continue
        for nth, product in enumerate(products):
            if source.function_around(product) is source.function_around(node):
                continue
            value = shown(source.text_of(product))
            edits = [
                source.replace(node, write.operand(node.args[0], node)),
                source.replace(
                    product,
                    f"{write.lax('psum')}({source.text_of(product)}, {source.text_of(axis)})",
                ),
            ]
            described = f"sum {value} over {source.text_of(axis)}, and not what is computed from it"
            yield r.make(edits, described, 3.2 + 0.4 * i + 0.15 * nth)


def gather_operand(r: EditContext) -> Iterator[Candidate]:
    """Gather an operand of an operation that needs all of it."""
    source, write = r.sites.source, r.writer
    names = [
        child
        for node in (*r.sites.named, *r.sites.others)
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
        if not _is_function(child, source.parents.get(child))
        and source.function_around(child) not in r.sites.outside
    ]
    unique = list(dict.fromkeys(names))[:8]
    base = 3.1 if r.misplaced else 5.5 if r.is_open else 6.5  # a sum sends less
    for (nth, node), axes in itertools.product(enumerate(unique), r.axes):
        for dim in ("", ", axis=1"):
            text = write.call("all_gather", source.text_of(node), axes, f"{dim}, tiled=True")
            described = f"gather `{source.text_of(node)}` over {write.axes(axes)} here"
            rank = base + 0.4 * nth + 0.5 * bool(dim)
            yield r.make([source.replace(node, text)], described, rank)
    split = {name.id: name for name in reversed(unique)}
    for (first, second), axes in itertools.product(itertools.combinations(split, 2), r.axes[:1]):
        edits = [
            source.replace(split[name], write.call("all_gather", name, axes, ", tiled=True"))
            for name in (first, second)
        ]
        yield r.make(edits, f"gather `{first}` and `{second}` over {write.axes(axes)} here", 6.9)


def take_one(r: EditContext) -> Iterator[Candidate]:
    """Take the value of the last or the first device instead of the sum over all."""
    source, write = r.sites.source, r.writer
    for place, node in enumerate(r.sites.calls({"psum"})):
        axis = axis_of(node)
        if not node.args or axis is None or not isinstance(axis, ast.Constant):
            continue
        name = source.text_of(axis)
        index, size = f"{write.lax('axis_index')}({name})", f"{write.lax('axis_size')}({name})"
        for which, number in (("last", f"{size} - 1"), ("first", "0")):
            value = f"{write.jnp}.where({index} == {number}, {source.text_of(node.args[0])}, 0)"
            described = f"sum only what the {which} device along {name} has"
            edit = source.replace(node.args[0], value)
            yield r.make([edit], described, (3.6 if r.is_open else 6.2) + 0.3 * place)


def change_dimension(r: EditContext) -> Iterator[Candidate]:
    """Gather, scatter or exchange along another dimension."""
    source = r.sites.source
    for node in r.sites.calls({"all_gather", "psum_scatter", "all_to_all"}):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        option = "scatter_dimension" if called(node) == "psum_scatter" else "axis"
        for dim in range(3) if called(node) != "all_to_all" else ():
            described = f"{called(node)} along dimension {dim}"
            if option in keywords:
                yield r.make([source.replace(keywords[option], str(dim))], described, 3 + 0.2 * dim)
            elif dim:
                end = source.span(node)[1] - 1
                yield r.make([Edit(end, end, f", {option}={dim}")], described, 3 + 0.2 * dim)
        pair = [keywords.get("split_axis"), keywords.get("concat_axis")]
        pair = pair if all(pair) else node.args[2:4]
        if called(node) == "all_to_all" and len(pair) == 2 and all(pair):
            first, second = pair
            assert first is not None
            assert second is not None
            edits = [
                source.replace(first, source.text_of(second)),
                source.replace(second, source.text_of(first)),
            ]
            yield r.make(edits, "exchange split_axis and concat_axis of the all_to_all", 3.2)


def draw_for_all(r: EditContext) -> Iterator[Candidate]:
    """Draw random numbers for the whole array, and keep this device's part."""
    source = r.sites.source
    for node in r.sites.calls(set(DRAWS)):
        keywords = [keyword.value for keyword in node.keywords if keyword.arg == "shape"]
        place = DRAWS[called(node)]
        shape = keywords[0] if keywords else node.args[place] if len(node.args) > place else None
        if shape is None or not node.args:
            continue
        for cut in _cuts(r, node):
            along = " and ".join(r.writer.axes(axes) for axes in cut.values())
            described = (
                f"draw the random numbers of all devices along {along}, and keep those of this one"
            )
            edits = [source.replace(node, _part_of_whole(r, node, shape, cut))]
            rank = 2.5 if r.draws else 5
            yield r.make(edits, described, rank)
            with_key = [*edits, *_without_index(r, node.args[0])]
            disjoint = not any(
                a.start < b.end and b.start < a.end for a, b in itertools.combinations(with_key, 2)
            )
            if len(with_key) > 1 and disjoint:
                yield r.make(with_key, f"{described}; use one key on every device", rank - 0.1)


def _cuts(r: EditContext, node: ast.expr) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield the ways in which a value may be split: the axes of each dimension."""
    local, whole = r.sites.values.get(node), r.sites.whole.get(node)
    if local is None or whole is None or len(local.shape) != len(whole.shape):
        yield from ({0: axes} for axes in r.axes[:2])
        return
    times = [large // max(1, small) for small, large in zip(local.shape, whole.shape, strict=True)]
    dims = [dim for dim, n in enumerate(times) if n > 1]
    every = list(dict.fromkeys(name for axes in r.axes for name in axes))
    options = [c for n in range(1, len(every) + 1) for c in itertools.combinations(every, n)]
    for assignment in itertools.product(options, repeat=len(dims)):
        names = [name for axes in assignment for name in axes]
        sizes = [math.prod(r.sizes[name] for name in axes) for axes in assignment]
        if dims and len(names) == len({*names}) and sizes == [times[dim] for dim in dims]:
            yield dict(zip(dims, assignment, strict=True))


def _part_of_whole(
    r: EditContext, node: ast.Call, shape: ast.expr, cut: dict[int, tuple[str, ...]]
) -> str:
    """Write a draw of the whole array and the slice of this device."""
    source, write = r.sites.source, r.writer
    last = max(cut)
    if isinstance(shape, ast.Tuple) and len(shape.elts) > last:
        sizes = [source.text_of(element) for element in shape.elts]
        tail = sizes[last + 1 :]
    else:
        sizes = [f"{source.text_of(shape)}[{dim}]" for dim in range(last + 1)]
        tail = [f"*{source.text_of(shape)}[{last + 1}:]"]
    index = {dim: f"{write.lax('axis_index')}({write.axes(axes)})" for dim, axes in cut.items()}
    count = {dim: f"{write.lax('axis_size')}({write.axes(axes)})" for dim, axes in cut.items()}
    full = [f"{count[d]} * {sizes[d]}" if d in cut else sizes[d] for d in range(last + 1)]
    start, end = source.span(node)
    first, stop = source.span(shape)
    before, after = source.data[start:first].decode(), source.data[stop:end].decode()
    every = f"{before}({', '.join([*full, *tail])}{',' if len([*full, *tail]) == 1 else ''}){after}"
    for dim in sorted(cut):
        axis = f", axis={dim}" if dim else ""
        every = (
            f"{write.lax('dynamic_slice_in_dim')}({every}, {index[dim]} * {sizes[dim]}, "
            f"{sizes[dim]}{axis})"
        )
    return every


def one_key(r: EditContext) -> Iterator[Candidate]:
    """Use the same key on every device, for numbers that have to be equal."""
    source, rank = r.sites.source, 2.3 if r.draws or r.misplaced else 4
    for node in r.sites.calls({"axis_index"}):
        if any(
            isinstance(call, ast.Call) and called(call) == "fold_in" for call in source.around(node)
        ):
            yield r.make([source.replace(node, "0")], "use the same key on every device", rank)


def _without_index(r: EditContext, key: ast.expr) -> Iterator[Edit]:
    """Yield the edits that make `fold_in(key, axis_index(...))` equal on every device."""
    source = r.sites.source
    values = [key, *(assigned(r.sites, key) if isinstance(key, ast.Name) else [])]
    for node in (child for value in values for child in ast.walk(value)):
        if isinstance(node, ast.Call) and called(node) == "axis_index":
            yield source.replace(node, "0")


def global_positions(r: EditContext) -> Iterator[Candidate]:
    """Count positions from the start of the whole array."""
    source, write = r.sites.source, r.writer
    for place, node in enumerate(r.sites.calls({"arange"})):
        if len(node.args) != 1:
            continue
        for axes in r.axes:
            count, text = source.text_of(node.args[0]), source.text_of(node)
            index = f"{write.lax('axis_index')}({write.axes(axes)})"
            offset = f"({index} * {count} + {text})"
            described = f"count positions from the first device along {write.axes(axes)}"
            yield r.make([source.replace(node, offset)], described, 4.2 + 0.3 * place)


def nudge(r: EditContext) -> Iterator[Candidate]:
    """Correct an off-by-one index or bound, or a wrong direction."""
    source, write = r.sites.source, r.writer
    swapped = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
    rank = 3.5 if r.is_open else 7
    for node in r.sites.nodes():
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            start, end = source.span(node.left)[1], source.span(node.comparators[0])[0]
            operator = source.data[start:end].decode()
            new = swapped.get(type(node.ops[0]))
            if new is not None:
                old = operator.strip(" ()")
                text = operator.replace(old, new, 1)
                yield r.make([Edit(start, end, text)], f"compare with {new}, not {old}", rank)
            elif isinstance(node.ops[0], ast.Eq) and source.text_of(node.comparators[0]) == "0":
                for axes in r.axes[:1]:
                    stop = f"{write.lax('axis_size')}({write.axes(axes)}) - 1"
                    edit = source.replace(node.comparators[0], stop)
                    yield r.make([edit], "take the last device, not the first", rank)
        elif isinstance(node, ast.Call) and called(node) in ("arange", "range") and node.args:
            stop = node.args[0] if len(node.args) == 1 else node.args[1]
            edit = source.replace(stop, f"{source.text_of(stop)} + 1")
            yield r.make([edit], f"one more iteration: {shown(source.text_of(node))}", rank + 0.5)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 2 and _in_permutation(r, node):
            first, second = node.elts
            edits = [
                source.replace(first, source.text_of(second)),
                source.replace(second, source.text_of(first)),
            ]
            yield r.make(edits, "send in the other direction", rank - 0.5)


def _in_permutation(r: EditContext, node: ast.Tuple) -> bool:
    return any(
        isinstance(parent, ast.Call) and called(parent) == "ppermute"
        for parent in r.sites.source.around(node)
    )


def _is_function(node: ast.Name, parent: ast.AST | None) -> bool:
    called_itself = isinstance(parent, ast.Call) and parent.func is node
    return called_itself or is_module(node) or node.id in ("lax", "optax")


REWRITES = (
    reduce_product,
    move_reduction,
    gather_operand,
    take_one,
    change_dimension,
    draw_for_all,
    one_key,
    global_positions,
    nudge,
)

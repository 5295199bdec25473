"""Rules for operations that combine elements of a dimension: if it is cut, shares result.

`reduce_sum` over a cut dimension, or a contraction of two dimensions cut alike, leaves a sum owed
over the axes of the cut. Where an axis would cut two dimensions of a result, it is hidden in both
operands: each device multiplies its own parts, and the term describes that.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from .._program import Leaf
from . import finite
from . import term as T
from .algebra import ANY, ORDER, RING
from .align import align
from .bits import dtype_of
from .elementwise import (
    check_product,
    not_dropped,
    only_sums,
    refuse_debts,
)
from .notes import Notes
from .rules import frozen, rule, shifted
from .skipped import refuse_skipped
from .value import (
    Dim,
    Value,
    axes_in,
    hide,
    local_size,
    narrowed,
    read_as,
    uncut,
    whole_along,
    whole_shape,
    with_dim,
    with_hidden,
)

TRUTHS = {"reduce_or": "reduce_max", "reduce_and": "reduce_min"}


@rule("reduce_sum", needs=RING)
@rule("reduce_max", "reduce_min", needs=ORDER)
def reductions(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Reduce; over a cut dimension a sum, maximum or minimum is owed over the axes of the cut."""
    (v,) = ins
    kind, along = T.of(op.name).combines, set(op.params["axes"])
    if any(owed_kind != kind for _, owed_kind in v.owed):
        refuse_debts(op.name, ins)
    for d in along:
        v = narrowed(v, d)
    # Where each device has one element there is nothing to add, so the axis becomes hidden.
    v = whole_along(v, [d for d in along if local_size(v.dims[d]) == 1])
    dims = tuple(dim for d, dim in enumerate(v.dims) if d not in along)
    over = frozenset() if v.zero else axes_in(v.dims[d] for d in along)
    lead = len(v.hidden)
    result = T.reduce(kind, v.scaled, shifted(sorted(along), lead))
    owed = v.owed | {(axis, kind) for axis in over}
    return [v.having(result, dims=dims, owed=owed, born=op if over else v.born)]


@rule("argmax", "argmin", needs=ORDER)
@rule("reduce_prod", "reduce_and", "reduce_or", "reduce_xor", needs=ANY)
def other_reductions(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Reduce dimensions that every device has whole; OR and AND of booleans are extremes."""
    if op.name in TRUTHS and op.outs[0].dtype == jnp.bool_:
        return reductions(w, dataclasses.replace(op, name=TRUTHS[op.name]), ins)
    refuse_debts(op.name, ins)
    if op.name.startswith("arg"):
        refuse_skipped(w, op.name, [ins[0].term])
    along = op.params["axes"]
    v = whole_along(ins[0], along)
    dims = tuple(dim for d, dim in enumerate(v.dims) if d not in along)
    lead = len(v.hidden)
    if op.name.startswith("reduce"):
        return [v.having(T.reduce(op.name[7:], v.scaled, shifted(along, lead)), dims=dims)]
    shape = whole_shape(dims, v.hidden)
    # A positive factor does not change the position of the largest element.
    kid = (1, v.term) if v.coef > 0 else v.scaled
    return [v.having(T.function(op.name, shifted(along, lead), [kid], shape), dims=dims)]


@rule("cumsum", needs=RING)
@rule("cumprod", "cummax", "cummin", "cumlogsumexp", needs=ANY)
def running(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Accumulate along a dimension that every device has whole; sums of shares are shares."""
    v = whole_along(ins[0], [op.params["axis"]])
    dim = op.params["axis"] + len(v.hidden)
    if op.name == "cumsum":
        only_sums("a running sum", v)
        kid, coef = (1, v.term), v.coef
    else:
        refuse_debts(op.name, ins)
        kid, coef = v.scaled, 1
    reverse = op.params["reverse"]
    params = lambda number: (number(dim), reverse)  # noqa: E731
    return [v.having(T.beside(op.name, [dim], [kid], v.term.shape, params, coef))]


@rule("fft", needs=RING)
def transforms(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Fourier transform along dimensions that every device has whole; shares stay shares."""
    lengths = op.params["fft_lengths"]
    rank = len(ins[0].dims)
    along = range(rank - len(lengths), rank)
    v = whole_along(ins[0], along)
    only_sums("a Fourier transform", v)
    dims = (*v.dims[: along.start], *(uncut(op.outs[0].shape[d]) for d in along))
    shape = whole_shape(dims, v.hidden)
    params = (op.params["fft_type"].name, tuple(lengths))
    return [v.having(T.linear("fft", params, v.scaled, shape), dims=dims)]


@rule("sort", needs=ANY)
def sorts(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Sort along a dimension that every device has whole."""
    refuse_debts("sorting", ins)
    refuse_skipped(w, "sorting", (v.term for v in ins[: op.params["num_keys"]]))
    d = op.params["dimension"]
    ins = [whole_along(v, [d]) for v in ins]
    ins = align(ins, w.known)
    at, keys = d + len(ins[0].hidden), op.params["num_keys"]
    stable, kids = op.params["is_stable"], [v.scaled for v in ins]
    results = []
    for i, v in enumerate(ins):
        params = lambda number, i=i: (number(at), keys, stable, i)  # noqa: E731
        results.append(v.having(T.beside("sort", [at], kids, v.term.shape, params)))
    return results


DIMENSIONS = ("axis", "reduction_dimension")


@rule("top_k", "approx_top_k", needs=ORDER)
def largest(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Return the largest elements along a dimension that every device has whole."""
    refuse_debts(op.name, ins)
    refuse_skipped(w, op.name, [ins[0].term])
    last = op.params.get("reduction_dimension", -1)
    d = op.params.get("axis", last) % len(ins[0].dims)
    v = whole_along(ins[0], [d])
    dims = with_dim(v.dims, d, uncut(op.outs[0].shape[d]))
    shape = whole_shape(dims, v.hidden)
    options = {key: value for key, value in op.params.items() if key not in DIMENSIONS}
    if T.of(op.name).fixed_dtype:
        options["operand"] = str(dtype_of(op.ins[0]))
    params = (frozen(options), d + len(v.hidden))
    return [
        v.having(T.function(op.name, (*params, i), [v.scaled], shape), dims=dims) for i in range(2)
    ]


@rule("dot_general", needs=RING)
def dots(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Contract; over dimensions cut alike a sum is owed, and other dimensions keep their cuts."""
    (cx, cy), (bx, by) = op.params["dimension_numbers"]
    x, y = ins
    owed, born = check_product("a matrix product", not_dropped(op, ins))
    x, y = meet(w, x, y, [*zip(cx, cy, strict=True), *zip(bx, by, strict=True)])
    x, y = part_ways(x, y, cx, cy, bx, by)
    hidden = sorted({*x.hidden, *y.hidden})
    x, y = with_hidden(x, hidden), with_hidden(y, hidden)
    fx = [d for d in range(len(x.dims)) if d not in cx and d not in bx]
    fy = [d for d in range(len(y.dims)) if d not in cy and d not in by]
    dims = (*(x.dims[d] for d in bx), *(x.dims[d] for d in fx), *(y.dims[d] for d in fy))
    over = axes_in(x.dims[d] for d in cx)
    lead = len(hidden)
    shape = whole_shape(dims, hidden)
    numbers = (
        (shifted(cx, lead), shifted(cy, lead)),
        (
            (*range(lead), *shifted(bx, lead)),
            (*range(lead), *shifted(by, lead)),
        ),
    )
    if not x.coef or not y.coef:
        data = jnp.issubdtype(op.outs[0].dtype, jnp.inexact)
        scaled = finite.contraction(numbers, x.scaled, y.scaled, shape) if data else T.zero(shape)
        if not scaled[0]:
            return [Value(*scaled, dims, tuple(hidden))]
    else:
        scaled = T.tidy(x.coef * y.coef), dot(numbers, x.term, y.term, shape)
    owed |= {(axis, "sum") for axis in over}
    return [Value(*scaled, dims, tuple(hidden), owed, op if over else born)]


def dot(numbers, x: T.Term, y: T.Term, shape) -> T.Term:
    """Return the term of a contraction."""
    return T.make("dot", numbers, ((1, x), (1, y)), shape)


def meet(w: Notes, x: Value, y: Value, pairs: list[tuple[int, int]]) -> tuple[Value, Value]:
    """Read two operands with their paired dimensions cut alike."""
    for i, j in pairs:
        if x.dims[i] == y.dims[j]:
            continue
        options = []
        if _may_read(x, i, y.dims[j]):
            options.append((read_as(x, with_dim(x.dims, i, y.dims[j])), y))
        if _may_read(y, j, x.dims[i]):
            options.append((x, read_as(y, with_dim(y.dims, j, x.dims[i]))))
        # Once an axis is hidden, reading it as a cut only helps if the reference has both terms.
        hidden = {*x.hidden, *y.hidden} & axes_in([x.dims[i], y.dims[j]])
        if hidden:
            options = [pair for pair in options if w.known(pair[0].term) and w.known(pair[1].term)]
        if not options:
            x, y = whole_along(x, [i]), whole_along(y, [j])
        else:
            x, y = max(options, key=lambda pair: w.known(pair[0].term) + w.known(pair[1].term))
    return x, y


def _may_read(v: Value, d: int, want: Dim) -> bool:
    """Return whether dimension `d` may be read with this cut: no axis is owed or cuts another."""
    others = axes_in(dim for e, dim in enumerate(v.dims) if e != d)
    return bool(axes_in([want])) and not axes_in([want]) & (v.debts | others)


def part_ways(x: Value, y: Value, cx, cy, bx, by) -> tuple[Value, Value]:
    """Hide the axes that cut both operands in dimensions that are not paired."""
    paired_x, paired_y = {*cx, *bx}, {*cy, *by}
    free_x = axes_in(dim for d, dim in enumerate(x.dims) if d not in paired_x)
    free_y = axes_in(dim for d, dim in enumerate(y.dims) if d not in paired_y)
    paired = axes_in(x.dims[d] for d in paired_x)
    clash = (free_x & (free_y | paired | set(y.hidden))) | (free_y & (paired | set(x.hidden)))
    clash |= paired & {*x.hidden, *y.hidden}
    for axis in sorted(clash):
        x, y = hide(x, axis), hide(y, axis)
    return x, y

"""Infer from their uses which numbers the arguments of a program may hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import Atom, Body, Cond, Leaf, Op, Split, Var, pairs, primitives
from ..._program.liveness import ancestors
from ..._program.primitives import COMPARISONS

KEEPS = primitives.names(
    lambda p: (
        p.identity
        or p.name in ("convert_element_type", "dynamic_slice")
        or (p.acts == "moves" and p.moves in ("reorder", "part", "repeat", "join"))
    )
)
"""Operations that pass numbers on unchanged."""

PASSES = KEEPS | primitives.names(
    lambda p: (p.pointwise and (p.selects or p.bounded or p.linear == "all")) or p.moves == "pad"
)
"""Operations allowed between an argument and its use as an index: offsets, wrapping."""

CARRIES_NAN = KEEPS | primitives.names(
    lambda p: (
        (p.pointwise and not (p.truth or p.bits or p.rounds))
        or (p.acts == "reduces" and p.combines in ("sum", "max"))
        or p.acts == "contracts"
    )
)
"""Operations allowed between an argument and a test for NaN."""

HUGE = 1 << 30
"""Limits this large are bounds to stay below, not values to tell apart."""

Sources = dict[Var, frozenset[Var]]
Reader = Callable[[Op], Iterator[tuple[Atom, Any]]]
"""What an operation implies for its operands."""


def bounds(body: Body) -> dict[Var, int]:
    """Return the exclusive upper bound of each input that is used as an index."""
    limits: dict[Var, int] = {}
    for var, limit in _uses(body, _inputs(body, jnp.integer), PASSES, _limits_in):
        limits[var] = min(limits.get(var, limit), limit)
    return limits


def compared(body: Body) -> dict[Var, set[tuple[str, float]]]:
    """Return the comparisons of each input with a number, as in `labels != -100`.

    Comparing an index with 0 to count it from the end does not count.
    """
    facts: dict[Var, set[tuple[str, float]]] = {}
    inputs = _inputs(body, jnp.integer) | _inputs(body, jnp.floating)
    for var, fact in _uses(body, inputs, KEEPS, _comparisons):
        facts.setdefault(var, set()).add(fact)
    return facts


def missing(body: Body) -> set[Var]:
    """Return the split inputs whose elements are tested for NaN.

    For example labels that are missing here and there, and left out by `nanmean`.
    """
    parts = {
        op.outs[0]: frozenset({op.ins[0]})
        for op in body.ops
        if isinstance(op, Split) and op.axes and isinstance(op.ins[0], Var)
    }
    return {var for var, _ in _uses(body, parts, CARRIES_NAN, lambda _: _asked_for_nan)}


def _asked_for_nan(op: Op) -> Iterator[tuple[Atom, bool]]:
    if isinstance(op, Leaf) and op.name in ("eq", "ne"):
        a, b = op.ins
        if a is b and isinstance(a, Var) and a.shape:  # a scalar test is a safeguard
            yield a, True


def met(body: Body) -> dict[Var, Var]:
    """Return for each input a value of the program that it is tested for equality with.

    For example the predictions that labels are compared with. Values that depend on the input
    itself are left out.
    """
    outs = {out for op in body.ops for out in op.outs}
    uses = _uses(body, _inputs(body, jnp.integer), KEEPS, lambda _: _equals)
    return {
        var: value
        for var, value in uses
        if value in outs and not any(var in op.ins for op in ancestors(body, value))
    }


def _equals(op: Op) -> Iterator[tuple[Atom, Var]]:
    if isinstance(op, Leaf) and op.name in ("eq", "ne"):
        for operand, partner in (op.ins, op.ins[::-1]):
            if isinstance(partner, Var):
                yield operand, partner


def _inputs(body: Body, kind: Any) -> Sources:
    """Return the inputs whose dtype is of a kind."""
    return {var: frozenset({var}) for var in body.ins if jnp.issubdtype(var.dtype, kind)}


def _uses(
    body: Body, sources: Sources, passes: frozenset[str], reader: Callable[[Body], Reader]
) -> Generator[tuple[Var, Any], None, list[frozenset[Var]]]:
    """Yield what `reader` infers for each input; return the inputs that reach the results.

    Loop bodies are followed once.
    """
    read = reader(body)
    for op in body.ops:
        for atom, fact in read(op):
            yield from ((var, fact) for var in _from(sources, [atom]))
        results = [frozenset[Var]()] * len(op.outs)
        for inner, rows in pairs(op):
            inputs = rows[: len(inner.ins)]
            inner_sources = {var: _from(sources, [atom]) for atom, var, _ in inputs}
            outs = yield from _uses(inner, inner_sources, passes, reader)
            results = [earlier | later for earlier, later in zip(results, outs, strict=True)]
        if op.name in passes if isinstance(op, Leaf) else not op.bodies:
            results = [_from(sources, op.ins)] * len(op.outs)
        if any(results):
            sources = {**sources, **dict(zip(op.outs, results, strict=True))}
    return [_from(sources, [atom]) for atom in body.outs]


def _from(sources: Sources, atoms: Sequence[Atom]) -> frozenset[Var]:
    origins = (sources.get(atom, frozenset()) for atom in atoms if isinstance(atom, Var))
    return frozenset().union(*origins)


def _limits_in(body: Body) -> Reader:
    ranges: dict[Var, int] = {}

    def read(op: Op) -> Iterator[tuple[Atom, int]]:
        yield from _limits(op, ranges)
        _follow_range(op, ranges)

    return read


def _follow_range(op: Op, ranges: dict[Var, int]) -> None:
    """Track the exclusive upper bound of integers that count from 0 or are positions."""
    if not isinstance(op, Leaf):
        return
    shape = op.ins[0].shape if op.ins and isinstance(op.ins[0], Var) else ()
    if op.name == "iota":
        ranges[op.outs[0]] = op.params["shape"][op.params["dimension"]]
    elif op.name in ("argmax", "argmin") and shape:
        ranges[op.outs[0]] = math.prod(shape[dim] for dim in op.params["axes"])
    elif op.name == "top_k" and shape:
        ranges[op.outs[1]] = shape[-1]
    elif op.name == "sort":
        for operand, result in zip(op.ins, op.outs, strict=True):
            if isinstance(operand, Var) and operand in ranges:
                ranges[result] = ranges[operand]
    elif op.name in PASSES:
        limits = [ranges[atom] for atom in op.ins if isinstance(atom, Var) and atom in ranges]
        if limits:
            ranges[op.outs[0]] = min(limits)


def _limits(op: Op, ranges: dict[Var, int]) -> Iterator[tuple[Atom, int]]:
    """Yield the operands that are indices, each with the bound that this use sets."""
    if isinstance(op, Cond):
        yield op.ins[0], len(op.branches)
    if not isinstance(op, Leaf) or not op.ins or not isinstance(op.ins[0], Var):
        return
    shape = op.ins[0].shape
    if op.name == "gather":
        sizes, dims = op.params["slice_sizes"], op.params["dimension_numbers"].start_index_map
        yield op.ins[1], min((shape[dim] - sizes[dim] + 1 for dim in dims), default=1)
    elif op.name.startswith("scatter"):
        dims = op.params["dimension_numbers"].scatter_dims_to_operand_dims
        yield op.ins[1], min((shape[dim] for dim in dims), default=1)
    elif op.name == "dynamic_slice":
        sizes = op.params["slice_sizes"]
        yield from ((atom, shape[dim] - sizes[dim] + 1) for dim, atom in enumerate(op.ins[1:]))
    elif op.name == "dynamic_update_slice" and isinstance(op.ins[1], Var):
        sizes = op.ins[1].shape
        yield from ((atom, shape[dim] - sizes[dim] + 1) for dim, atom in enumerate(op.ins[2:]))
    elif op.name in COMPARISONS:
        for operand, partner in (op.ins, op.ins[::-1]):
            if isinstance(partner, Var) and partner in ranges:
                yield operand, ranges[partner]


def _comparisons(body: Body) -> Reader:
    makers = {out: op for op in body.ops for out in op.outs}
    choices = {op.ins[0]: op for op in body.ops if isinstance(op, Leaf) and op.name == "select_n"}

    def wraps(op: Op, one: Atom) -> bool:
        """Return whether the comparison serves to count an index from the end."""
        select = choices.get(op.outs[0])
        cases = select.ins[1:] if select else ()
        adding = [makers[case] for case in cases if isinstance(case, Var) and case in makers]
        return any(one in add.ins for add in adding if isinstance(add, Leaf) and add.name == "add")

    def written(atom: Atom) -> float | None:
        """Return the literal that a value stands for, if it is one."""
        array = literal(atom, makers)
        if array is None or array.dtype.kind not in "iuf" or not abs(array) < HUGE:  # or NaN
            return None
        return array.item()

    def read(op: Op) -> Iterator[tuple[Atom, Any]]:
        if not isinstance(op, Leaf) or op.name not in COMPARISONS:
            return
        for name, operand, partner in (
            (op.name, *op.ins),
            (primitives.of(op.name).mirror, *op.ins[::-1]),
        ):
            number = written(partner)
            if number is not None and not wraps(op, operand):
                yield operand, (name, number)

    return read


def literal(atom: Atom, makers: Mapping[Var, Op]) -> np.ndarray | None:
    """Return the scalar that a value stands for, if it is a literal."""
    while isinstance(atom, Var):
        op = makers.get(atom)
        if not isinstance(op, Leaf) or op.name not in KEEPS or len(op.ins) != 1:
            return None
        (atom,) = op.ins
    array = np.asarray(atom.value)
    return None if array.ndim else array

"""How a value on a mesh relates to its twin, the same value on one device.

The two programs are the same list of operations with other sizes, so that operations are matched by
their place in the source. A value is *right* when every device holds the value of one device, or
its part of it; it is a *share* when it becomes right by a reduction over devices; else it is off.
"""

from __future__ import annotations

import difflib
import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._program import Atom, Body, Collective, Leaf, Op, Var, live
from ..lift import Run, ValueOnMesh

Agree = Callable[[Any, Any], bool]


class Pair(NamedTuple):
    """A value on the mesh and its twin on one device, as computed by both runs."""

    value: ValueOnMesh
    alone: np.ndarray
    twin: Var


Beside = Mapping[Var, Pair]
"""Values on the mesh, each with its twin on one device."""

LIMIT = 1 << 24
"""At most this many bytes of values are compared."""


@functools.lru_cache(maxsize=1)
def beside(run: Run, base: Run) -> Beside:
    """Return the values on the way to the results that have a twin, as computed by both runs."""
    twins = twins_of(run.body, base.body)
    rows = zip(twins, run.observe([*twins]), base.observe([*twins.values()]), strict=True)
    return {var: Pair(value, alone.first, twins[var]) for var, value, alone in rows}


def twins_of(body: Body, ones: Body) -> dict[Var, Var]:
    """Return the values worth comparing, each with the same value in the program on one device."""
    used = {out for op in live(body.ops, body.outs) for out in op.outs}
    keys = [_key(op) for op in body.ops], [_key(op) for op in ones.ops]
    twins: dict[Var, Var] = {}
    size = 0
    for a, b, count in difflib.SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        ops = zip(body.ops[a : a + count], ones.ops[b : b + count], strict=True)
        for var, twin in (pair for row in ops for pair in _pairs(*row)):
            if not isinstance(var, Var) or not isinstance(twin, Var) or var.dtype != twin.dtype:
                continue
            if var in used and var not in twins and not _is_random(var.dtype):
                size += var.bytes * math.prod(axis.size for axis in var.axes)
                if size <= LIMIT:
                    twins[var] = twin
    return twins


def _pairs(op: Op, twin: Op) -> list[tuple[Atom, Atom]]:
    """Pair the results and operands of two operations; operands may be made in different ways."""
    ins = zip(op.ins, twin.ins, strict=True) if len(op.ins) == len(twin.ins) else ()
    return [*zip(op.outs, twin.outs, strict=True), *ins]


def _is_random(dtype: Any) -> bool:
    """Return whether a dtype is that of keys or random bits: there are many, and all differ."""
    return jnp.issubdtype(dtype, jax.dtypes.extended) or dtype == np.uint32


def _key(op: Op) -> tuple[Any, ...]:
    name = op.name if isinstance(op, Leaf | Collective) else ""
    where = op.where.file, op.where.line, op.where.column
    return type(op).__name__, name, len(op.outs), *where


class Relation(enum.Enum):
    """The relation of a value to its twin."""

    RIGHT = "right"
    SHARE = "right after a reduction"
    OFF = "wrong"
    UNLIKE = "of a shape that cannot be compared"


REDUCE: dict[str, Callable[..., Any]] = {
    "psum": np.sum,
    "pmean": np.mean,
    "pmax": np.max,
    "pmin": np.min,
}


def relate(
    value: ValueOnMesh, want: np.ndarray, agree: Agree, reductions: Sequence[str]
) -> Relation:
    """Return how a value on a mesh relates to the value `want` on one device."""
    local = value.array.shape[len(value.axes) :]
    if local != want.shape:
        wholes = [*_wholes(value, want.shape)]
        if not wholes:
            return Relation.UNLIKE
        return Relation.RIGHT if any(agree(whole, want) for whole in wholes) else Relation.OFF
    if all(agree(row, want) for row in value.rows):
        return Relation.RIGHT
    return Relation.SHARE if _is_share(value, want, agree, reductions) else Relation.OFF


def _is_share(
    value: ValueOnMesh, want: np.ndarray, agree: Agree, reductions: Sequence[str]
) -> bool:
    """Return whether one reduction makes the value right on all devices."""
    if value.array.dtype == bool:
        return False
    if not jnp.issubdtype(value.array.dtype, jnp.floating):
        reductions = [name for name in reductions if name in {"psum", "pmean"}]
    all_dims = range(len(value.axes))
    for dims in (dims for n in all_dims for dims in itertools.combinations(all_dims, n + 1)):
        for name in reductions:
            with np.errstate(all="ignore"):
                reduced = REDUCE[name](value.array, axis=dims)
            rows = reduced.reshape((-1, *want.shape))
            if all(agree(row, want) for row in rows):
                return True
    return False


def _wholes(value: ValueOnMesh, shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield all ways to join the parts of all devices into one array of a shape."""
    count, local = len(value.axes), value.array.shape[len(value.axes) :]
    if len(local) != len(shape):
        return
    for dims in itertools.product(range(len(shape)), repeat=count):  # each axis splits one of them
        joined = list(local)
        for axis, dim in zip(value.axes, dims, strict=True):
            joined[dim] *= axis.size
        if joined != [*shape]:
            continue
        for order in itertools.permutations(range(count)):
            rows = enumerate(range(count, value.array.ndim))
            split = [([axis for axis in order if dims[axis] == dim], last) for dim, last in rows]
            order_of_dims = [axis for axes, last in split for axis in (*axes, last)]
            yield value.array.transpose(order_of_dims).reshape(shape)

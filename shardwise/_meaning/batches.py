"""Indexing by position: `x[jnp.arange(n), y]` picks one element of each row.

Along a dimension that is indexed by its own positions nothing is looked up: row i is taken for row
i. So such a gather, and the scatter that is its transpose, is read as one over a batch of rows, as
`jnp.take_along_axis` is traced. Positions may be those of several dimensions, as in
`x[jnp.arange(n)[:, None], jnp.arange(t), y]`, and the other columns may be anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._program import Atom, Leaf, Lit, Op, Var, shape_of
from .leaves import made_leaf, var_like

Makers = Mapping[Var, Op]

NAMES = {
    "gather": ("start_index_map", "collapsed_slice_dims", "start_indices_batching_dims"),
    "scatter": (
        "scatter_dims_to_operand_dims",
        "inserted_window_dims",
        "scatter_indices_batching_dims",
    ),
}
"""The fields of the dimension numbers for the indexed dimensions, the dropped dimensions, and the
batch dimensions of the index.
"""


def by_rows(op: Op, makers: Makers) -> list[Op]:
    """Return an operation that indexes by position as one over a batch of rows, else unchanged."""
    if not isinstance(op, Leaf) or not op.name.startswith(("gather", "scatter")):
        return [op]
    looked_up, dropped, batched = NAMES["gather" if op.name == "gather" else "scatter"]
    numbers, x = op.params["dimension_numbers"], op.ins[0]
    columns = _columns(op.ins[1], makers)
    dims = tuple(getattr(numbers, looked_up))
    if len(columns) != len(dims) or not isinstance(x, Var):
        return [op]
    matched: dict[int, int] = {}
    rest: list[tuple[int, Atom]] = []
    for dim, column in zip(dims, columns, strict=True):
        row = _counts_along(column, makers)
        free = row is not None and row not in matched.values() and dim in getattr(numbers, dropped)
        if row is not None and free and shape_of(column)[row] == x.shape[dim]:
            matched[dim] = row
        else:
            rest.append((dim, column))
    if not matched or not rest:
        return [op]
    pairs = {**_paired(numbers, batched), **matched}
    changed = numbers._replace(
        **{
            looked_up: tuple(dim for dim, _ in rest),
            dropped: tuple(d for d in getattr(numbers, dropped) if d not in matched),
            "operand_batching_dims": tuple(sorted(pairs)),
            batched: tuple(pairs[dim] for dim in sorted(pairs)),
        }
    )
    ops, index = _beside([column for _, column in rest], op)
    params = {**op.params, "dimension_numbers": changed}
    return [*ops, dataclasses.replace(op, ins=[x, index, *op.ins[2:]], params=params)]


def _paired(numbers: Any, batched: str) -> dict[int, int]:
    return dict(zip(numbers.operand_batching_dims, getattr(numbers, batched), strict=True))


def _columns(index: Atom, makers: Makers) -> list[Atom]:
    """Return the columns of an index that is their concatenation, one for each dimension."""
    op = _maker(index, makers)
    if op is None or op.name != "concatenate":
        return []
    last = len(op.outs[0].shape) - 1
    single = all(shape_of(atom)[-1] == 1 for atom in op.ins)
    return list(op.ins) if op.params["dimension"] == last and single else []


def _beside(columns: Sequence[Atom], op: Leaf) -> tuple[list[Op], Atom]:
    """Return columns as one index, with the operation that makes it if there are several."""
    if len(columns) == 1:
        return [], columns[0]
    *rows, _ = shape_of(columns[0])
    last, first = len(rows), op.ins[1]
    assert isinstance(first, Var)
    index = var_like(first, (*rows, len(columns)))
    return [made_leaf(op, "concatenate", columns, index, dimension=last)], index


def _counts_along(atom: Atom, makers: Makers) -> int | None:
    """Return the only dimension along which integers count up from 0."""
    op = _maker(atom, makers)
    if op is None or not _has_room(op.outs[0]):
        return None
    if op.name == "iota":
        return op.params["dimension"]
    inner = _counts_along(op.ins[0], makers) if op.ins else None
    match op.name:
        case "convert_element_type":
            return inner
        case "broadcast_in_dim" if inner is not None:
            dim = op.params["broadcast_dimensions"][inner]
            return dim if op.outs[0].shape[dim] == shape_of(op.ins[0])[inner] else None
        case "reshape" if inner is not None:
            return _same_dim(shape_of(op.ins[0]), op.outs[0].shape, inner)
        case "select_n":
            # Negative indices would count from the end, but positions are never negative.
            least = _maker(op.ins[0], makers)
            if least is not None and least.name == "lt" and _is_zero(least.ins[1]):
                tested, counted = (_counts_along(a, makers) for a in (least.ins[0], op.ins[1]))
                return counted if tested is not None else None
    return None


def _has_room(var: Var) -> bool:
    """Return whether an integer dtype can represent every position along the dimensions."""
    if not jnp.issubdtype(var.dtype, jnp.integer):
        return False
    return max(var.shape, default=0) - 1 <= jnp.iinfo(var.dtype).max


def _same_dim(before: Sequence[int], after: Sequence[int], dim: int) -> int | None:
    """Return a dimension's position after a reshape that adds or drops dimensions of size 1."""
    if before[dim] == 1:  # found by index if others are only appended
        return dim if tuple(after[: len(before)]) == tuple(before) else None
    old = [d for d, size in enumerate(before) if size > 1]
    new = [d for d, size in enumerate(after) if size > 1]
    alike = [before[d] for d in old] == [after[d] for d in new]
    return new[old.index(dim)] if alike and dim in old else None


def _is_zero(atom: Atom) -> bool:
    return isinstance(atom, Lit) and np.ndim(atom.value) == 0 and not atom.value


def _maker(atom: Atom, makers: Makers) -> Leaf | None:
    op = makers.get(atom) if isinstance(atom, Var) else None
    return op if isinstance(op, Leaf) else None

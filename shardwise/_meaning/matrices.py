"""Rules for linear algebra: one matrix at a time, so that batches of them may be split.

There is no rule for eigenvectors and singular vectors: their signs, and the vectors themselves for
equal values, depend on rounding.
"""

from __future__ import annotations

from .._program import Leaf
from . import term as T
from .algebra import ANY
from .align import align_but
from .elementwise import refuse_debts
from .notes import Notes
from .rules import frozen, rule
from .value import Unknown, Value, uncut, whole_along, whole_shape


@rule("cholesky", "lu", "qr", "triangular_solve", "householder_product", needs=ANY)
def by_matrix(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Apply a function to each matrix; leading batch dimensions may be split."""
    return _batched(w, op, ins, len(ins[0].dims) - 2)


@rule("lu_pivots_to_permutation", "tridiagonal_solve", needs=ANY)
def by_vector(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Apply a function to each vector; leading batch dimensions may be split."""
    return _batched(w, op, ins, len(ins[0].dims) - 1)


def _batched(w: Notes, op: Leaf, ins: list[Value], batch: int) -> list[Value]:
    """Apply a function of all dimensions after the first `batch`."""
    refuse_debts(op.name, ins)
    ins = [whole_along(v, range(batch, len(v.dims))) for v in ins]
    rows = _rows(w, ins, batch)
    hidden, front = rows[0].hidden, rows[0].dims[:batch]
    kids = [v.scaled for v in rows]
    params = frozen({key: str(value) for key, value in op.params.items()})
    results = []
    for index, var in enumerate(op.outs):
        dims = (*front, *(uncut(size) for size in var.shape[batch:]))
        shape = whole_shape(dims, hidden)
        scaled = T.function(op.name, (params, index), kids, shape)
        results.append(Value(*scaled, dims, hidden))
    return results


def _rows(w: Notes, ins: list[Value], batch: int) -> list[Value]:
    """Return the operands with their batch dimensions split alike."""
    if len({(v.dims[:batch], v.hidden) for v in ins}) == 1:
        return ins
    if len({len(v.dims) for v in ins}) > 1:
        raise Unknown("operands whose batches are split in different ways")
    return align_but(ins, range(batch, len(ins[0].dims)), w.known)

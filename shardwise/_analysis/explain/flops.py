"""Count the FLOPs of an operation, by its primitive.

Only floating-point results count: integer comparisons and index computations are no FLOPs. A
transcendental function counts as one, moving data as none. If neither the table of primitives nor
a rule here covers the operation, the count is `None`, and the report says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp

from ..._program import Leaf, Lit, Var, shape_of
from ..._program.primitives import of


def flops_of(op: Leaf) -> tuple[str, float] | None:
    """Return the kind of work and the FLOPs of one occurrence; None if unknown."""
    if op.name in _RULES:
        kind, rule = _RULES[op.name]
        return kind, rule(op)
    row = of(op.name)
    kind = "reduction" if row.work == "operand" else "elementwise"
    counted = _is_float(op.outs[0]) if op.outs else False
    match row.work:
        case "none":
            return kind, 0.0
        case "result":
            return kind, sum(_size(out) for out in op.outs if _is_float(out))
        case "operand":
            return kind, _size(op.ins[0]) if counted else 0.0
        case "updates":
            return kind, _size(op.ins[2]) if counted else 0.0
    return None


def _is_float(atom: Var | Lit) -> bool:
    return isinstance(atom, Lit) or jnp.issubdtype(atom.dtype, jnp.inexact)


def _size(atom: Var | Lit) -> float:
    return float(math.prod(shape_of(atom)))


def _dot(op: Leaf) -> float:
    """Count a multiplication and an addition for each term of each element."""
    (contracted, _), _ = op.params["dimension_numbers"]
    terms = math.prod(shape_of(op.ins[0])[dim] for dim in contracted)
    return 2.0 * _size(op.outs[0]) * terms


def _convolution(op: Leaf) -> float:
    """Count the whole kernel for each element of the result, for the inputs of its own group."""
    kernel = shape_of(op.ins[1])
    out_features = kernel[op.params["dimension_numbers"].rhs_spec[0]]
    return 2.0 * _size(op.outs[0]) * math.prod(kernel) / max(1, out_features)


def _square(op: Leaf) -> tuple[float, float]:
    """Return the number of matrices, and the rows of each."""
    *batch, rows, _ = shape_of(op.ins[0])
    return float(math.prod(batch)), float(rows)


def _cholesky(op: Leaf) -> float:
    count, size = _square(op)
    return count * size**3 / 3


def _lu(op: Leaf) -> float:
    count, size = _square(op)
    return count * 2 * size**3 / 3


def _triangular(op: Leaf) -> float:
    _, size = _square(op)
    return size * _size(op.ins[1])


_RULES: dict[str, tuple[str, Callable[[Leaf], float]]] = {
    "dot_general": ("dot", _dot),
    "conv_general_dilated": ("convolution", _convolution),
    "cholesky": ("linear algebra", _cholesky),
    "lu": ("linear algebra", _lu),
    "triangular_solve": ("linear algebra", _triangular),
}

"""What conversions do to the bits of whole numbers.

Those of 32 bits count as all there are. In fewer, sums and products do wrap around: that is the
same whatever the order of a sum, until they are given more bits.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from . import term as T
from .evaluate import numbers
from .value import Value

GROWS = {
    *("sum", "product", "reduce_sum", "dot", "conv", "cumsum", "integer_pow"),
    *("scatter_add", "add_rows", "loop", "while"),
}
"""What may make numbers larger than a type of few bits holds."""

MOVES = {
    *("bcast", "reshape", "transpose", "slice", "concatenate", "pad", "rev", "permute", "device"),
    *("select", "max", "min", "reduce_max", "reduce_min", "sort", "gather", "rows"),
    *("dynamic_slice", "update", "scatter"),
}
"""What gives some of the numbers that it is given."""


def wraps(old: Any, new: Any) -> bool:
    """Whether whole numbers lose their upper bits."""
    if not (jnp.issubdtype(old, jnp.integer) and jnp.issubdtype(new, jnp.integer)):
        return False
    width = jnp.iinfo(new).bits
    return width < 32 and width < jnp.iinfo(old).bits


def loses_sign(v: Value, old: Any, new: Any) -> bool:
    """Whether negative numbers may become large ones. Positions and counts are known not to be."""
    if not (jnp.issubdtype(old, jnp.signedinteger) and jnp.issubdtype(new, jnp.unsignedinteger)):
        return False
    found = None if v.owed else numbers(v.scaled)
    return found is None or bool((found < 0).any())


def widens(old: Any, new: Any) -> bool:
    """Whether whole numbers of 8 or 16 bits get more of them, or become fractions."""
    if not jnp.issubdtype(old, jnp.integer) or jnp.iinfo(old).bits >= 32:
        return False
    return not jnp.issubdtype(new, jnp.integer) or jnp.iinfo(new).bits > jnp.iinfo(old).bits


def may_have_wrapped(v: Value, old: Any) -> bool:
    """Whether a value may have been too large for its type; an argument is not."""
    if any(kind == "sum" for _, kind in v.owed):
        return True  # the sum may be small, and a share of it large
    limits, found = jnp.iinfo(old), numbers(v.scaled)
    if found is not None:
        return bool(((found < limits.min) | (found > limits.max)).any())
    stack, seen = [v.scaled], {v.term}
    while stack:
        coef, t = stack.pop()
        carried = t.op == "symbol" and t.params[0] == "carry"
        if carried or t.op in GROWS or (coef not in (0, 1) and not T.is_one(t)):
            return True
        if t.op in MOVES:
            stack += [kid for kid in t.kids if kid[1] not in seen]
            seen.update(kid for _, kid in t.kids)
    return False

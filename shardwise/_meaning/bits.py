"""What whole numbers of few bits are.

Those of 32 bits count as all there are, but for those without a sign, below 0. In fewer, sums and
products do wrap around: that is the same whatever the order of a sum. It is no longer once they are
given more bits, or are compared: from there on a number that may have wrapped around is `held`,
which no factor comes out of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._program import Atom, Leaf, Lit
from . import term as T
from .evaluate import numbers
from .value import Unknown, Value

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


TRUTHS = {
    *("zero", "nonzero", "negative", "positive", "nonpositive", "nonnegative"),
    *("is_finite", "is_nan"),
    *("eq", "ne", "lt", "gt", "le", "ge"),
}
"""What is 0 or 1."""

KEEPS = {
    *("add", "add_any", "sub", "mul", "neg", "integer_pow", "square", "reduce_sum", "cumsum"),
    *("dot_general", "conv_general_dilated", "scatter-add", "scatter_add", "select_n", "copy"),
    *("copy_p", "optimization_barrier", "stop_gradient", "broadcast_in_dim", "reshape", "squeeze"),
    *("expand_dims", "transpose", "slice", "concatenate", "pad", "rev", "gather", "dynamic_slice"),
    *("dynamic_update_slice", "split", "convert_element_type"),
}
"""Operations that wrap around alike, whether what they are given has wrapped around or not."""


def dtype_of(atom: Atom) -> Any:
    """The type of an operand."""
    return jnp.asarray(atom.value).dtype if isinstance(atom, Lit) else atom.dtype


def few_bits(dtype: Any) -> bool:
    """Whether whole numbers have 8 or 16 bits, or none for a sign."""
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return True
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32


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
    """Whether whole numbers of few bits get more of them, or become fractions."""
    if not few_bits(old):
        return False
    return not jnp.issubdtype(new, jnp.integer) or jnp.iinfo(new).bits > jnp.iinfo(old).bits


def may_have_wrapped(v: Value, old: Any) -> bool:
    """Whether a value may have been too large for its type, or below 0; an argument is not."""
    if jnp.iinfo(old).bits >= 32:
        return _goes_below(v)
    if any(kind == "sum" for _, kind in v.owed):
        return True  # the sum may be small, and a share of it large
    limits, found = jnp.iinfo(old), numbers(v.scaled)
    if found is not None:
        return bool(((found < limits.min) | (found > limits.max)).any())
    stack, seen = [v.scaled], {v.scaled}
    while stack:
        coef, t = stack.pop()
        carried = t.op == "symbol" and t.params[0] == "carry"
        if T.is_one(t) or t.op in TRUTHS:
            grown = not limits.min <= coef <= limits.max
        else:
            grown = coef not in (0, 1) and t.op not in MOVES
        if carried or grown or t.op in GROWS:
            return True
        if t.op in MOVES:
            stack += [(coef * c, kid) for c, kid in t.kids if (coef * c, kid) not in seen]
            seen.update((coef * c, kid) for c, kid in t.kids)
    return False


def _goes_below(v: Value) -> bool:
    """Whether something is subtracted, and the difference, or a share of it, may be negative."""
    found = None if v.owed else numbers(v.scaled)
    if found is not None:
        return bool((found < 0).any())
    stack, seen = [v.scaled], {v.term}
    while stack:
        coef, t = stack.pop()
        if coef < 0:
            return True
        if t.op in GROWS | MOVES:
            stack += [kid for kid in t.kids if kid[1] not in seen]
            seen.update(kid for _, kid in t.kids)
    return False


def held(v: Value, dtype: Any) -> Value:
    """The number that a device holds: itself, or what is left of it where it may have wrapped."""
    if not few_bits(dtype) or v.owed or not may_have_wrapped(v, dtype):
        return v
    return v.having(T.elementwise("held", str(dtype), [v.scaled], v.term.shape))


def as_held(op: Leaf, ins: Sequence[Value]) -> list[Value]:
    """What an operation is given, as it is held where that makes a difference."""
    rows = [(v, dtype_of(atom)) for v, atom in zip(ins, op.ins, strict=True)]
    if op.name not in KEEPS:
        return [held(v, own) for v, own in rows]
    new = op.outs[0].dtype
    for v, own in rows:
        if v.owed and widens(own, new) and may_have_wrapped(v, own):
            raise Unknown(f"each device's {own} may have wrapped around before it becomes {new}")
    return [held(v, own) if widens(own, new) else v for v, own in rows]

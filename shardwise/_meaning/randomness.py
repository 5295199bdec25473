"""Rules for random numbers: a draw is a function of its key and of the shape drawn.

Keys in an array are drawn from one by one, so a cut array of keys gives a cut array of numbers. A
draw of a *local* shape from a key that is the same everywhere is the same on every device, and not
a part of the draw of the whole.
"""

from __future__ import annotations

from .._program import Leaf
from . import term as T
from .align import whole_along
from .elementwise import pointwise, refuse_debts
from .notes import Notes
from .rules import frozen, rule
from .value import Unknown, Value, hidden_sizes, uncut, whole_size


@rule("random_bits", "random_split", "random_unwrap", "random_seed", "random_clone")
def draws(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """One draw for each key; the dimensions of the keys keep their cuts."""
    refuse_debts(op.name, ins)
    (v,) = ins
    extra = op.outs[0].shape[len(v.dims) :]
    dims = (*v.dims, *map(uncut, extra))
    shape = (*hidden_sizes(v.hidden), *map(whole_size, dims))
    params = (frozen(op.params), len(extra))
    return [v.having(T.function(op.name, params, [v.scaled], shape), dims=dims)]


@rule("random_wrap")
def wraps(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Numbers become keys, along the last dimensions."""
    refuse_debts(op.name, ins)
    count = len(op.outs[0].shape)
    v = whole_along(ins[0], range(count, len(ins[0].dims)))
    dims = v.dims[:count]
    shape = (*hidden_sizes(v.hidden), *map(whole_size, dims))
    return [v.having(T.function(op.name, frozen(op.params), [v.scaled], shape), dims=dims)]


@rule("random_gamma", "bitcast_convert_type")
def by_element(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """By element, where shapes stay."""
    if any(v.local != tuple(op.outs[0].shape) for v in ins):
        raise Unknown(f"{op.name} that changes the shape")
    return pointwise(w, op, ins)

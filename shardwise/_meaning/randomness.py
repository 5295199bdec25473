"""Rules for random numbers: a draw is a function of its key and of the shape drawn.

Each key of an array is drawn from separately, so a cut array of keys gives a cut array of numbers.
A draw of a *local* shape from a replicated key is the same on every device, and not a part of the
draw of the whole.

Some generators draw for a whole array of keys at once, from the first of them: then the numbers for
one key depend on the other keys in the array, and so on how it is cut.
"""

from __future__ import annotations

import math

from .. import _jax
from .._program import Leaf, Var
from . import term as T
from .algebra import ANY
from .elementwise import pointwise, refuse_debts
from .notes import Notes
from .rules import frozen, rule
from .value import Unknown, Value, uncut, whole_along, whole_shape

AT_ONCE: dict[str, frozenset[str]] = {
    "threefry2x32": frozenset(),
    "rbg": frozenset({"random_bits", "random_gamma"}),
}
"""For each generator, the operations that handle an array of keys at once; all for others."""


def _one_by_one(op: Leaf, ins: list[Value]) -> None:
    """Raise `Unknown` if a generator handles several keys at once."""
    keys = op.ins[0]
    if not isinstance(keys, Var) or not _jax.is_key(keys.dtype):
        return
    name = _jax.key_impl(keys.dtype)
    if op.name in AT_ONCE.get(name, {op.name}) and any(math.prod(v.shape) > 1 for v in ins):
        raise Unknown(
            f"{op.name} of an array of {name} keys, which are not drawn from one by one: what a "
            "key gives depends on the others in the array"
        )


@rule("random_bits", "random_split", "random_unwrap", "random_seed", "random_clone", needs=ANY)
def draws(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Draw once for each key; the dimensions of the keys keep their cuts."""
    refuse_debts(op.name, ins)
    _one_by_one(op, ins)
    (v,) = ins
    extra = op.outs[0].shape[len(v.dims) :]
    dims = (*v.dims, *map(uncut, extra))
    shape = whole_shape(dims, v.hidden)
    params = (frozen(op.params), len(extra))
    return [v.having(T.function(op.name, params, [v.scaled], shape), dims=dims)]


@rule("random_wrap", needs=ANY)
def wraps(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Turn numbers into keys, along the last dimensions."""
    refuse_debts(op.name, ins)
    count = len(op.outs[0].shape)
    v = whole_along(ins[0], range(count, len(ins[0].dims)))
    dims = v.dims[:count]
    shape = whole_shape(dims, v.hidden)
    return [v.having(T.function(op.name, frozen(op.params), [v.scaled], shape), dims=dims)]


@rule("random_fold_in", needs=ANY)
def folds(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Fold one number into each key."""
    _one_by_one(op, ins)
    return pointwise(w, op, ins)


@rule("random_gamma", "bitcast_convert_type", needs=ANY)
def by_element(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Apply by element, where the shape does not change."""
    _one_by_one(op, ins)
    if any(v.local != tuple(op.outs[0].shape) for v in ins):
        raise Unknown(f"{op.name} that changes the shape")
    return pointwise(w, op, ins)

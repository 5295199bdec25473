"""Rules for collectives, `in_specs` and `out_specs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .._mesh import Axis
from .._program import Collective, Join, Split, Var
from .._program.primitives import REDUCTIONS, SUMS, of
from . import term as T
from .algebra import MOVES, ORDER, REAL, RING, kind_of
from .align import reshaped
from .bits import dtype_of, held
from .notes import Notes
from .rules import admit
from .value import (
    Unknown,
    Value,
    axes_in,
    combined_over,
    cut_by,
    hide,
    local_size,
    owing,
    read_as,
    thickened,
    thinned,
    tidy_dim,
    uncut,
    whole_along,
    whole_size,
    with_dim,
)


def split(op: Split, v: Value) -> Value:
    """Return a device's part of an argument, as cut by `in_specs`."""
    for d, axes in enumerate(op.placement):
        v = dealt(v, d, [axis for axis in axes if axis.size > 1])
    return v


def join(w: Notes, op: Join, v: Value) -> Value:
    """Return a result: the parts joined as `out_specs` says, or the first of parts that agree."""
    ours = {axis for axis in (*op.axes, *op.replicated) if axis.size > 1}
    if v.debts & ours:
        raise Unknown("a result that is still owed", frozenset(v.debts & ours))
    shape = tuple(
        size * math.prod(axis.size for axis in axes)
        for size, axes in zip(v.local, op.placement, strict=True)
    )
    others = [tuple(a for _, axes in dim for a in axes if a not in ours) for dim in v.dims]
    if any(others):
        raise Unknown("a result of one mesh inside another")
    moved = _moved(v, op) if w.known(v.term) else ()
    v = read_as(v, cut_by(op.placement, shape))
    apart = [axis for axis in v.hidden if axis in ours]
    for axis in apart:
        v = _take(v, axis, 0)
    if (apart or moved) and not w.known(v.term):
        (atom,) = op.ins
        maker = w.makers.get(atom, op) if isinstance(atom, Var) else op
        w.joined[v.term] = ("first" if apart else "moved", maker, tuple(apart) or moved)
    return v.having(v.scaled, dims=tuple(uncut(size) for size in shape))


def _moved(v: Value, op: Join) -> tuple[Axis, ...]:
    """Return the axes that cut one dimension of a value and are declared to cut another."""
    return tuple(
        axis
        for d, axes in enumerate(op.placement)
        for axis in axes
        if axis.size > 1 and any(axis in axes_in([dim]) for e, dim in enumerate(v.dims) if e != d)
    )


def _take(v: Value, axis: Axis, index: int) -> Value:
    """Return one device's value."""
    dim = v.hidden.index(axis)
    hidden = tuple(a for a in v.hidden if a != axis)
    shape = (*v.term.shape[:dim], *v.term.shape[dim + 1 :])
    if dim in T.uniform_dims(v.term):
        return v.having((v.coef, T.strip(v.term, {dim})), hidden=hidden)
    return v.having(T.linear("device", (dim, index), v.scaled, shape), hidden=hidden)


def exchange(w: Notes, op: Collective, v: Value) -> Value:
    """Return the result of a collective."""
    axes = tuple(axis for axis in op.axes if axis.size > 1)
    if not axes and op.name in (*REDUCTIONS, "pbroadcast"):
        return v
    if op.name == "ppermute":
        w.passed_on |= {*axes}
    if op.groups is not None and op.groups != (tuple(range(math.prod(a.size for a in op.axes))),):
        raise Unknown(f"{op.name} within groups of devices")
    if op.name not in RULES:
        raise Unknown(f"there is no rule for {op.name}")
    admit(op, NEEDS.get(op.name, MOVES), [dtype_of(atom) for atom in op.ins])
    return RULES[op.name](w, op, v, axes)


def _psum(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Sum over devices; this adds up what is owed, and multiplies replicated values."""
    for axis in axes:
        if (axis, "sum") in v.owed:
            w.note("paid", op, axis, v)
        elif axis in v.debts:
            raise Unknown("psum of a maximum or minimum that is still owed", v.debts)
        else:
            kind = "blocks" if axis in v.axes else "times"
            v = owing(v, axis)
            w.note(kind, op, axis, v)
        v = v.having(v.scaled, owed=v.owed - {(axis, "sum")})
    return v.having(v.scaled, born=v.born if v.owed else None)


def _extreme(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Take the maximum or minimum over devices."""
    kind = op.name[1:]
    for axis in axes:
        if (axis, kind) in v.owed:
            w.note("paid", op, axis, v)
            v = v.having(v.scaled, owed=v.owed - {(axis, kind)})
        elif axis in v.debts:
            raise Unknown(f"{op.name} of each device's own share", v.debts)
        elif axis in v.axes:
            if any(owed_kind != kind for _, owed_kind in v.owed):
                raise Unknown(f"{op.name} of something that is still owed otherwise", v.debts)
            v = combined_over(held(v, dtype_of(op.ins[0])), axis, kind)
    note_skipping(w, op, v)
    return v.having(v.scaled, born=v.born if v.owed else None)


def note_skipping(w: Notes, op: Collective, v: Value) -> None:
    """Record a maximum or minimum over devices that skips NaN."""
    if not v.owed and kind_of(dtype_of(op.ins[0])) == REAL:
        w.skipping.add(T.core(v.term))


def _gather(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Gather parts along a dimension, or along a new one."""
    d, tiled = op.params["dimension"], op.params["tiled"]
    _refuse(op, v, axes)
    v = v if tiled else thickened(v, d)
    return gathered(v, d, axes) if axes else v


def gathered(v: Value, d: int, axes: Sequence[Axis]) -> Value:
    """Remove the cut over these axes from dimension `d`."""
    for axis in axes:
        if axis in v.axes and axis not in axes_in([v.dims[d]]):
            v = hide(v, axis)
    if len(v.dims[d]) > 1:
        v = whole_along(v, [d])
    kept = [axis for _, cut in v.dims[d] for axis in cut if axis not in axes]
    count = math.prod(axis.size for axis in (*kept, *axes))
    want = tidy_dim([(local_size(v.dims[d]) * count, (*kept, *axes))])
    v = read_as(v, with_dim(v.dims, d, want))
    rest = tidy_dim([(whole_size(want), tuple(kept))])
    return v.having(v.scaled, dims=with_dim(v.dims, d, rest))


def _scatter(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Sum over devices; each keeps its part of a dimension."""
    d, tiled = op.params["dimension"], op.params["tiled"]
    v = _psum(w, op, v, axes)
    v = dealt(v, d, axes)
    return v if tiled else thinned(v, [d])


def dealt(v: Value, d: int, axes: Sequence[Axis]) -> Value:
    """Cut dimension `d`, which all devices have: each keeps its block."""
    if frozenset(axes) & (v.axes | v.debts):
        raise Unknown("a part is taken of a value that already differs along the axis")
    if not axes:
        return v
    if len(v.dims[d]) > 1:
        v = whole_along(v, [d])
    current = tuple(axis for _, cut in v.dims[d] for axis in cut)
    dim = tidy_dim([(whole_size(v.dims[d]), (*current, *axes))])
    return v.having(v.scaled, dims=with_dim(v.dims, d, dim))


def _all_to_all(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Move a cut from one dimension to another."""
    _refuse(op, v, axes)
    if not axes:
        return v
    split, concat = op.params["split"], op.params["concat"]
    if split != concat:
        return dealt(gathered(v, concat, axes), split, axes)
    # Each device's part consists of blocks, one from each device.
    count = math.prod(axis.size for axis in axes)
    local = (*v.local[:split], count, v.local[split] // count, *v.local[split + 1 :])
    out = reshaped(v, local, w.known, w.shapes_of(v.term))
    out = dealt(gathered(out, split + 1, axes), split, axes)
    return reshaped(out, v.local, w.known, w.shapes_of(out.term))


def _ppermute(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Permute parts; a device that receives nothing has zeros."""
    count = math.prod(axis.size for axis in op.axes)
    sender = [-1] * count
    for source, target in op.params["perm"]:
        sender[target] = source
    if sender == list(range(count)) or (-1 not in sender and not set(axes) & (v.axes | v.debts)):
        return v
    if axes and set(axes) <= v.debts and -1 not in sender:
        return v
    if sender == [-1]:
        return v.having(T.zero(v.term.shape), owed=frozenset())
    _refuse(op, v, axes)
    if len(axes) > 1:
        raise Unknown("ppermute over several axes at once")
    v = hide(v, axes[0])
    dim = v.hidden.index(axes[0])
    return v.having(permuted(v.scaled, dim, tuple(sender)))


def permuted(x: T.Scaled, at: int, sender: tuple[int, ...]) -> T.Scaled:
    """Permute the elements along a dimension; -1 stands for zeros."""
    coef, t = x
    if t.op == "permute" and t.params[0] == at:
        first = t.params[1]
        sender = tuple(-1 if s < 0 else first[s] for s in sender)
        if sender == tuple(range(len(sender))):
            return coef, t.kids[0][1]
        return T.linear("permute", (at, sender), (coef, t.kids[0][1]), t.shape)
    return T.linear("permute", (at, sender), x, t.shape)


def _pbroadcast(w: Notes, op: Collective, v: Value, axes: Sequence[Axis]) -> Value:
    """Broadcast the value of one device to all."""
    _refuse(op, v, axes)
    if not set(axes) & v.axes:
        return v
    if len(axes) > 1:
        raise Unknown("pbroadcast over several axes at once")
    return _take(hide(v, axes[0]), axes[0], op.params["source"])


def _refuse(op: Collective, v: Value, axes: Sequence[Axis]) -> None:
    debts = v.debts & frozenset(axes)
    if debts:
        raise Unknown(
            f"{op.name} of each device's own share of a sum, before it is added up", debts
        )


NEEDS = {name: RING if of(name).combines == "sum" else ORDER for name in SUMS}
"""The algebra that each reduction needs; the other collectives move elements."""

RULES: dict[str, Callable[..., Value]] = {
    "psum": _psum,
    "pmax": _extreme,
    "pmin": _extreme,
    "all_gather": _gather,
    "psum_scatter": _scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "pbroadcast": _pbroadcast,
}

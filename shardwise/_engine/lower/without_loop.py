"""Run operations for all devices at once, on stacked values, without a loop.

The inputs of a stage and the values that later ones read are stored for all devices in any case. If
everything in between is elementwise, XLA fuses it into one pass over the stacks: a loop over the
devices would save nothing, and take longer to trace and compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from ... import _jax
from ..._mesh import Axis
from ..._program import Join, Leaf, Lit, Op, Var
from ..._program.primitives import of
from .context import Env, read
from .plan import Stage, count_uses
from .value import StackedValue, stacked

SMALL = 1 << 20
"""Bytes that a stage may use for all devices together besides its inputs and outputs."""


def is_flat(stage: Stage, uses: dict[Var, int], axes: Iterable[Axis]) -> bool:
    """Return whether a stage can run for all devices at once without additional memory."""
    if not all(map(_is_known, stage.inside)):
        return False
    return _spare(stage, uses, set(axes)) <= SMALL + _joined(stage, set(axes))


def _is_known(op: Op) -> bool:
    if not isinstance(op, Leaf) or op.primitive is None:
        return False
    if len(op.outs) > 1:
        return False
    return of(op.name).pointwise or (op.name in MOVING and not isinstance(op.ins[0], Lit))


def _spare(stage: Stage, uses: dict[Var, int], axes: set[Axis]) -> int:
    """Return the bytes of intermediate values that are read more than once, or reduced over
    devices."""
    uses_inside = count_uses(stage.inside, ())
    operands = {atom for op in stage.meetings if not isinstance(op, Join) for atom in op.ins}
    return sum(
        _stack(var, axes)
        for op in stage.inside
        for var in op.outs
        if var in operands or (uses_inside.get(var, 0) > 1 and uses.get(var, 0) == uses_inside[var])
    )


def _joined(stage: Stage, axes: set[Axis]) -> int:
    """Return the bytes of values that become results: a loop would stack and copy them."""
    joined = {atom for op in stage.meetings if isinstance(op, Join) for atom in op.ins}
    return sum(_stack(var, axes) for op in stage.inside for var in op.outs if var in joined)


def _stack(var: Var, axes: set[Axis]) -> int:
    return var.bytes * math.prod(axis.size for axis in var.axes & axes)


def run(stage: Stage, env: Env) -> None:
    """Run a stage for all devices, and write its values to `env`."""
    for op in stage.inside:
        assert isinstance(op, Leaf)
        with _jax.same_place(op.source):
            env[op.outs[0]] = _apply(op, [read(env, atom) for atom in op.ins])


def _apply(op: Leaf, ins: Sequence[StackedValue]) -> StackedValue:
    if of(op.name).pointwise:
        arrays, dims = _aligned(op.outs[0].shape, ins)
        return StackedValue(_bind(op, op.params, arrays), dims)
    axes = list(dict.fromkeys(axis for x in ins for axis in x.dims))
    leading = tuple(axis.size for axis in axes)
    params = op.params | MOVING[op.name](op.params, leading)
    return stacked(_bind(op, params, [x.spread(axes) for x in ins]), axes)


def _aligned(
    shape: tuple[int, ...], ins: Sequence[StackedValue]
) -> tuple[list[Any], Mapping[Axis, int]]:
    """Give operands one layout, except scalars beside arrays."""

    def is_number(x: StackedValue) -> bool:
        return shape != () and not x.dims and np.shape(x.array) == ()

    full = [x for x in ins if not is_number(x)]
    rank = len(shape) + len(full[0].dims)
    if all(x.dims == full[0].dims and np.ndim(x.array) == rank for x in full):
        return [x.array for x in ins], full[0].dims
    axes = list(dict.fromkeys(axis for x in ins for axis in x.dims))
    leading = tuple(axis.size for axis in axes)

    def align(x: StackedValue) -> Any:
        if is_number(x):
            return x.array
        array = x.spread(axes)
        if np.ndim(array) == len(leading) + len(shape):
            return array
        return lax.broadcast_in_dim(array, leading + shape, range(len(leading)))

    return list(map(align, ins)), stacked(None, axes).dims


def _bind(op: Leaf, params: dict[str, Any], arrays: Sequence[Any]) -> Any:
    (out,) = _jax.bind(op.primitive, params, *arrays)
    return out


Params = dict[str, Any]


def _behind(dims: Iterable[int], lead: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d + len(lead) for d in dims)


def _with_lead(dims: Iterable[int], lead: tuple[int, ...]) -> tuple[int, ...]:
    return (*range(len(lead)), *_behind(dims, lead))


def _broadcast(params: Params, lead: tuple[int, ...]) -> Params:
    dims = _with_lead(params["broadcast_dimensions"], lead)
    return {"shape": (*lead, *params["shape"]), "broadcast_dimensions": dims}


def _reshape(params: Params, lead: tuple[int, ...]) -> Params:
    order = params["dimensions"]
    return {
        "new_sizes": (*lead, *params["new_sizes"]),
        "dimensions": None if order is None else _with_lead(order, lead),
    }


def _slice(params: Params, lead: tuple[int, ...]) -> Params:
    strides = params["strides"]
    return {
        "start_indices": (*[0] * len(lead), *params["start_indices"]),
        "limit_indices": (*lead, *params["limit_indices"]),
        "strides": None if strides is None else (*[1] * len(lead), *strides),
    }


MOVING: dict[str, Callable[[Params, tuple[int, ...]], Params]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, lead: {"dimension": params["dimension"] + len(lead)},
    "reshape": _reshape,
    "slice": _slice,
    "squeeze": lambda params, lead: {"dimensions": _behind(params["dimensions"], lead)},
    "transpose": lambda params, lead: {"permutation": _with_lead(params["permutation"], lead)},
}
"""Primitives that move elements; their parameters with the dimensions of devices in front."""

"""Values that one part of a simulated program passes to another.

A derivative cuts a program in two: a forward part, and a linear part that needs some of what the
first has computed (the residuals). One rule holds for all that passes between them:

    **A value that one part of a program passes to another is stored for every device that it may
    differ on.**

The axes are determined from the operations of the program (`differing`), not from JAX's types and
specs: the type of a residual of a `cond` does not depend on which device takes which branch, and
with `check_vma=False` an output need not conform to its spec. On real devices neither matters,
since every device reads what it wrote itself.

Such a value is passed as an array with one more dimension in front for each of its axes. It is
stacked and unstacked by the operations that a `shard_map` ends and begins with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from jax import lax

from .._base.errors import UnsupportedError
from .._mesh import Axis, Placement
from .ir import Atom, Body, Join, Leaf, Lit, Op, Split, Var
from .varying import differing

StackAxes = tuple[Axis, ...] | None
"""The axes in front of a value that parts of a program exchange; None for a user's value.

A user's argument is the same on every device, and a user's result is the first device's.
"""

RequestedAxes = StackAxes | Literal["every"]
"""The requested axes of a result; "every" is all axes over which it may differ."""


def unstack_value(array: Atom, value: Var, axes: Sequence[Axis]) -> list[Op]:
    """Return the operations that extract each device's value from a stacked array."""
    part = Var((1,) * len(axes) + value.shape, value.dtype, value.weak)
    split = Split([array], [part], _in_front(axes, value.shape))
    return [split, Leaf([part], [value], "reshape", partial(_reshape, value.shape))]


def stack_value(atom: Atom, axes: Sequence[Axis]) -> tuple[list[Op], Var]:
    """Return the operations that stack the values of all devices, and the stacked array."""
    value = _var(atom)
    part = Var((1,) * len(axes) + value.shape, value.dtype, value.weak)
    stacked = Var(stacked_shape(axes, value.shape), value.dtype, value.weak)
    join = Join([part], [stacked], _in_front(axes, value.shape))
    return [Leaf([atom], [part], "reshape", partial(_reshape, part.shape)), join], stacked


def stacked_shape(axes: Sequence[Axis] | None, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a stacked array."""
    return (*(axis.size for axis in axes or ()), *shape)


def unstack_inputs(body: Body, stack_axes: Sequence[StackAxes]) -> Body:
    """Return the program with some inputs replaced by stacked arrays."""
    ins: list[Var] = []
    first: list[Op] = []
    for value, axes in zip(body.ins, stack_axes, strict=True):
        ins.append(
            Var(stacked_shape(axes, value.shape), value.dtype, value.weak) if axes else value
        )
        first += unstack_value(ins[-1], value, axes) if axes else []
    return Body(ins, [*first, *body.ops], body.outs, body.dropped)


def choose_stack_axes(body: Body, requested: Sequence[RequestedAxes]) -> tuple[StackAxes, ...]:
    """Return the axes in front of each result."""
    if all(request is None for request in requested):
        return (None,) * len(requested)
    axes_of_results = differing(body)
    for request, axes in zip(requested, axes_of_results, strict=True):
        if isinstance(request, tuple) and not axes <= set(request):
            raise _unsupported_derivative(sorted(axis.name for axis in axes - set(request)))
    return tuple(
        tuple(sorted(axes)) if request == "every" else request
        for request, axes in zip(requested, axes_of_results, strict=True)
    )


def stack_outputs(body: Body, stack_axes: Sequence[StackAxes]) -> Body:
    """Return the program with some results replaced by stacked arrays."""
    ops, outs = list(body.ops), []
    for atom, axes in zip(body.outs, stack_axes, strict=True):
        extra, out = stack_value(atom, axes) if axes else ([], atom)
        ops += extra
        outs.append(out)
    return Body(body.ins, ops, outs, body.dropped)


def _unsupported_derivative(axes: list[str]) -> UnsupportedError:
    """Return the error for a derivative that differs over more axes than its value's type."""
    return UnsupportedError(
        f"it needs the derivative of a value that is equal along {axes}, but that derivative is "
        "not",
        where="a higher derivative of a simulated function",
        rule="A residual that is the same on all devices is stored once. A custom derivative rule "
        "of the program returns a derivative that differs between them.",
        remedy="simulate the derivative instead: sw.simulate(jax.hessian(f)).",
    )


def _in_front(axes: Sequence[Axis], shape: Sequence[int]) -> Placement:
    return (*((axis,) for axis in axes), *(() for _ in shape))


def _reshape(shape: tuple[int, ...], x: Any) -> list[Any]:
    return [lax.reshape(x, shape)]


def _var(atom: Atom) -> Var:
    if isinstance(atom, Lit):
        return Var(np.shape(atom.value), np.result_type(atom.value))
    return atom

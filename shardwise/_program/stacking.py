"""Values that one part of a simulated program hands to another.

A derivative cuts a program in two: a forward part, and a linear part that needs some of what the
first has computed (the residuals). One rule holds for all that passes between them:

    **A value that leaves one part of a program for another is kept for every device that it may
    differ on.**

Which axes those are is read off what the program does (`differing`). JAX's types and specs are not
asked: a residual of a `cond` is typed by what its branches hold, whichever device takes which, and
with `check_vma=False` nobody holds an output to its spec. On real devices neither matters, since
every device reads what it wrote itself.

Such a value travels as an array with one more dimension in front for each of its axes. Taking it
apart and putting it together are the operations that a `shard_map` begins and ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from jax import lax

from .._base.errors import UnsupportedError, explain_error
from .._mesh import Axis, Placement
from .ir import Atom, Body, Join, Leaf, Lit, Op, Split, Var
from .varying import differing

StackAxes = tuple[Axis, ...] | None
"""The axes in front of a value that is handed over; None for one that is the user's.

What a user gives is the same on every device, and what a user gets is the first device's.
"""

WantedAxes = StackAxes | Literal["every"]
"""How a result is wanted: "every" is for every device that it may differ on."""


def unstack_value(array: Atom, own: Var, axes: Sequence[Axis]) -> list[Op]:
    """The operations that make of a handed array what each device handed over."""
    part = Var((1,) * len(axes) + own.shape, own.dtype, own.weak)
    split = Split([array], [part], _in_front(axes, own.shape))
    return [split, Leaf([part], [own], "reshape", partial(_reshape, own.shape))]


def stack_value(atom: Atom, axes: Sequence[Axis]) -> tuple[list[Op], Var]:
    """The operations that make an array to hand over of what each device has."""
    own = _var(atom)
    part = Var((1,) * len(axes) + own.shape, own.dtype, own.weak)
    whole = Var(stacked_shape(axes, own.shape), own.dtype, own.weak)
    join = Join([part], [whole], _in_front(axes, own.shape))
    return [Leaf([atom], [part], "reshape", partial(_reshape, part.shape)), join], whole


def stacked_shape(axes: Sequence[Axis] | None, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a handed array."""
    return (*(axis.size for axis in axes or ()), *shape)


def unstack_inputs(body: Body, given: Sequence[StackAxes]) -> Body:
    """The program that takes some of its inputs as handed arrays."""
    ins: list[Var] = []
    first: list[Op] = []
    for own, axes in zip(body.ins, given, strict=True):
        ins.append(Var(stacked_shape(axes, own.shape), own.dtype, own.weak) if axes else own)
        first += unstack_value(ins[-1], own, axes) if axes else []
    return Body(ins, [*first, *body.ops], body.outs, body.dropped)


def choose_stack_axes(body: Body, wanted: Sequence[WantedAxes]) -> tuple[StackAxes, ...]:
    """The axes in front of each result."""
    if all(one is None for one in wanted):
        return (None,) * len(wanted)
    found = differing(body)
    for one, axes in zip(wanted, found, strict=True):
        if isinstance(one, tuple) and not axes <= set(one):
            raise _refusal(sorted(axis.name for axis in axes - set(one)))
    return tuple(
        tuple(sorted(axes)) if one == "every" else one
        for one, axes in zip(wanted, found, strict=True)
    )


def stack_outputs(body: Body, kept: Sequence[StackAxes]) -> Body:
    """The program that gives some of its results as arrays to hand over."""
    ops, outs = list(body.ops), []
    for atom, axes in zip(body.outs, kept, strict=True):
        more, out = stack_value(atom, axes) if axes else ([], atom)
        ops += more
        outs.append(out)
    return Body(body.ins, ops, outs, body.dropped)


def _refusal(axes: list[str]) -> UnsupportedError:
    """A derivative has the type of its value, so it can differ over no other axes."""
    return UnsupportedError(
        explain_error(
            f"it needs the derivative of a value that is the same along {axes}, and that "
            "derivative is not",
            where="a higher derivative of a simulated function",
            rule="What one derivative keeps for the next is kept once where it is the same on "
            "all devices. A derivative rule of the program's own gives one that differs.",
            remedy="simulate the derivative instead: sw.simulate(jax.hessian(f)).",
        )
    )


def _in_front(axes: Sequence[Axis], shape: Sequence[int]) -> Placement:
    return (*((axis,) for axis in axes), *(() for _ in shape))


def _reshape(shape: tuple[int, ...], x: Any) -> list[Any]:
    return [lax.reshape(x, shape)]


def _var(atom: Atom) -> Var:
    if isinstance(atom, Lit):
        return Var(np.shape(atom.value), np.result_type(atom.value))
    return atom

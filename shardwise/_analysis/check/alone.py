"""Find operations that each device applies to its own part, where the whole array was meant.

In-batch negatives, a median, a running sum: an operation that combines the elements of a dimension
gives another result for a part of it. The analysis has no rule for the difference and so cannot
prove that it is wrong. But if the numbers are wrong, and the devices communicate by nothing but
reductions on the way to the result, then no exchange has made up for the missing parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..._mesh import Axis
from ..._program import Collective, Leaf, Op, Var, walk
from ..._program.primitives import REDUCTIONS, of
from ..faults import DependsOnDevices, Finding
from .cause import names
from .flow import ancestors
from .wrong import Wrong

PRODUCT = "dot_general"


def alone(op: Op | None, one: Wrong) -> Finding | None:
    """Return the finding for an operation that was applied to parts, if it explains the result."""
    if not isinstance(op, Leaf) or not op.where.file or not one.comes_from(op):
        return None
    operand_axes = [atom.axes for atom in op.ins if isinstance(atom, Var)]
    if op.name == PRODUCT:
        axes = sorted(operand_axes[0] & operand_axes[1]) if len(operand_axes) == 2 else []
    else:
        axes = sorted(operand_axes[0]) if operand_axes and of(op.name).along else []
    if not axes or _are_exchanged(one, axes):
        return None
    label = names(axes)
    action = (
        "multiplies its own part with its own part"
        if op.name == PRODUCT
        else f"{of(op.name).along} its own part"
    )
    finding = DependsOnDevices.from_operation(one, op, action, label, _rows(op, label))
    message = f"{one.path} {finding.message} (on {one.mesh})"
    return dataclasses.replace(finding, message=message, leaf=one.path, mesh=one.mesh)


def _rows(op: Leaf, over: str) -> str:
    if op.name != PRODUCT:
        return "."
    return (
        " for one of the two. With n rows on each device, its own then begin at "
        f"n * jax.lax.axis_index({over})."
    )


def _are_exchanged(one: Wrong, axes: Sequence[Axis]) -> bool:
    """Return whether a result depends on a collective over `axes` that is not a reduction."""
    body = one.run.body
    made_by = ancestors(body, body.outs[one.index])
    return any(_exchanges(op, axes) for op in walk(made_by))


def _exchanges(op: Op, axes: Sequence[Axis]) -> bool:
    return isinstance(op, Collective) and op.name not in REDUCTIONS and bool({*op.axes} & {*axes})

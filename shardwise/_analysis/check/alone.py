"""Find operations that each device applies to its own part, where the whole array was meant.

In-batch negatives, a median, a running sum: an operation that combines the elements of a dimension
gives another result for a part of it. The analysis has no rule for the difference and so cannot
prove that it is wrong. But if the numbers are wrong, and the devices communicate by nothing but
reductions on the way to the result, then no exchange has made up for the missing parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..._mesh import Axis
from ..._program import Collective, Leaf, Op, Var, walk
from ..._program.liveness import ancestors
from ..._program.primitives import REDUCTIONS, of
from ..faults import DependsOnDevices, Finding
from .cause import names
from .numbers import about
from .wrong import Wrong


def alone(op: Op | None, result: Wrong) -> Finding | None:
    """Return the finding for an operation that was applied to parts, if it explains the result."""
    if not isinstance(op, Leaf) or not op.where.file:
        return None
    operand_axes = [atom.axes for atom in op.ins if isinstance(atom, Var)]
    if op.name == "dot_general":
        axes = sorted(operand_axes[0] & operand_axes[1]) if len(operand_axes) == 2 else []
        does = "multiplies its own part with its own part"
        rows = (
            " for one of the two. With n rows on each device, its own then begin at "
            f"n * jax.lax.axis_index({names(axes)})."
        )
    else:
        axes = sorted(operand_axes[0]) if operand_axes and of(op.name).along else []
        does, rows = f"{of(op.name).along} its own part", "."
    if not axes or _are_exchanged(result, axes) or not result.comes_from(op):
        return None
    finding = DependsOnDevices.from_operation(result, op, does, names(axes), rows)
    return about(finding, result, f" (on {result.mesh})")


def _are_exchanged(result: Wrong, axes: Sequence[Axis]) -> bool:
    """Return whether a result depends on a collective over `axes` that is not a reduction."""
    body = result.run.body
    return any(
        isinstance(op, Collective) and op.name not in REDUCTIONS and {*op.axes} & {*axes}
        for op in walk(ancestors(body, body.outs[result.index]))
    )

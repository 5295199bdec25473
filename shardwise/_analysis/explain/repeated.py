"""Find collectives in a loop that could run once, outside of it."""

from __future__ import annotations

import numpy as np

from ..._program import Collective, Leaf, Lit, Op, Scan, added_up, is_move, primitives, within
from .instead import Avoidance, code, names, replacement, sent_bytes


def always_the_same(op: Collective, loop: Scan) -> Avoidance:
    """Return a plan for a collective that has the same result in each iteration."""
    return Avoidance(
        "every iteration",
        f"{op.name} gives the same in each of the {loop.length} iterations of the loop",
        f"do it once, before the loop at {loop.where}.",
        (replacement(op.name, op.axes, sent_bytes(op)),),
        once=loop.length,
    )


def added_up_only(op: Collective, loop: Scan) -> Avoidance | None:
    """Return a plan for a sum over devices that the loop only accumulates."""
    if op.name != "psum" or op.groups is not None:
        return None
    if not any(sum_in_loop.collective is op for sum_in_loop in added_up(loop, _is_linear)):
        return None
    name = "pmean" if within(op.source, "pmean") else op.name
    if op.backward and not is_recomputed(loop):
        remedy = (
            f"before the loop at {loop.where}, make the value this is the gradient of each "
            f"device's own: jax.lax.pcast(value, {code(op.axes)}, to='varying'). Its gradient is "
            "then summed once."
        )
    else:
        remedy = f"add up each device's own, and {name} the total after the loop at {loop.where}."
    return Avoidance(
        "added up",
        f"the loop only adds up what its {loop.length} iterations sum over {names(op.axes)}",
        remedy,
        (replacement(op.name, op.axes, sent_bytes(op)),),
        once=loop.length,
    )


def _is_linear(op: Leaf) -> bool:
    """Return whether an operation commutes with a sum."""
    linear = primitives.of(op.name).linear
    factors = op.ins if linear == "each" else op.ins[1:] if linear == "first" else ()
    return is_move(op) or any(isinstance(x, Lit) and np.shape(x.value) == () for x in factors)


def is_recomputed(op: Op) -> bool:
    """Return whether an operation is a recomputation by `jax.checkpoint`."""
    sources = () if op.source is None else (op.source, *op.calls)
    return any("rematted_computation" in str(source.name_stack) for source in sources)

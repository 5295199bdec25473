"""Keys that are equal for operations that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ir import AxisIndex, Collective, Leaf, Lit, Op, Split

SMALL = 16
"""The largest constants, in elements, that are compared by value."""


def operation_key(op: Op) -> Any:
    """Return a key for what an operation does to its operands; None if it equals only itself."""
    match op:
        case Leaf() if op.primitive is not None:
            return op.primitive, comparable(op.params)
        case Leaf() if not op.effectful and hasattr(op.run, "func"):
            run: Any = op.run
            return run.func, comparable(run.args)
        case Collective():
            return op.name, op.axes, comparable(op.params), op.groups
        case AxisIndex():
            return op.axis, op.scope
        case Split():
            return op.placement
    return None


def comparable(value: Any) -> Any:
    """Return a hashable key for a value: parameters, atoms and constants, nested or not."""
    if isinstance(value, Lit):
        return _constant(value.value)
    if isinstance(value, dict):
        items = tuple(sorted(value.items()))
        return items if _hashable(items) else tuple((key, comparable(v)) for key, v in items)
    if isinstance(value, tuple | list):
        return tuple(map(comparable, value))
    return value if _hashable(value) else id(value)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _constant(value: Any) -> Any:
    if isinstance(value, bool | int | float | complex | np.generic):
        return type(value), str(np.asarray(value).dtype), np.asarray(value).tobytes()
    if isinstance(value, np.ndarray) and value.size <= SMALL:
        return str(value.dtype), value.shape, value.tobytes()
    return id(value)

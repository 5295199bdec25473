"""Operations and values that are made for the rules to read; they are never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._program import Atom, Leaf, Op, Var


def _never(*args: Any) -> list[Any]:
    raise AssertionError("this operation is read, not run")


def made_leaf(like: Op, name: str, ins: Sequence[Atom], out: Var, **params: Any) -> Leaf:
    """Return an operation with the source location of another one."""
    place = {"scope": like.scope, "source": like.source, "calls": like.calls}
    return Leaf([*ins], [out], name, _never, params, **place)


def var_like(var: Var, shape: Sequence[int]) -> Var:
    """Return a new value of another shape."""
    result = Var(tuple(shape), var.dtype, var.weak)
    result.axes = var.axes
    return result

"""Determine whether results of a function depend on its argument.

The derivative does not show it: that of `argmax` is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .... import _jax


def depends(function: Callable[[Any], Any], argument: Any) -> bool:
    """Return whether any result of a function depends on its argument other than by
    `stop_gradient`."""
    return any(dependents(function, argument, past="stop_gradient"))


def dependents(
    function: Callable[..., Any], argument: Any, *others: Any, past: str = ""
) -> list[bool]:
    """Return which results of a function depend on its first argument.

    Args:
        function: The function.
        argument: Its first argument, or the shapes of it.
        others: Its other arguments.
        past: A primitive whose results count as constants.
    """
    traced = jax.make_jaxpr(function)(argument, *others)
    count = len(jax.tree.leaves(argument))
    places = range(len(_jax.open_jaxpr(traced).invars))
    return _follow(traced, [place < count for place in places], past)


def _follow(jaxpr: Any, marks: Sequence[bool], past: str) -> list[bool]:
    """Return which results of a jaxpr depend on its marked arguments."""
    inner = _jax.open_jaxpr(jaxpr)
    marked = {var for var, mark in zip(inner.invars, marks, strict=True) if mark}

    def is_marked(x: Any) -> bool:
        return not isinstance(x, _jax.Literal) and x in marked

    for eqn in inner.eqns:
        marks = [is_marked(x) for x in eqn.invars]
        if any(marks) and eqn.primitive.name != past:
            outs = _results(eqn, marks, past)
            marked |= {var for var, mark in zip(eqn.outvars, outs, strict=True) if mark}
    return [is_marked(x) for x in inner.outvars]


def _results(eqn: Any, marks: list[bool], past: str) -> list[bool]:
    """Return which results of one equation depend on its marked arguments; all of them, if in
    doubt."""
    all_outputs = [True] * len(eqn.outvars)
    name = eqn.primitive.name
    if name == "cond":
        dependent = [_follow(branch, marks[1:], past) for branch in eqn.params["branches"]]
        return [marks[0] or any(column) for column in zip(*dependent, strict=True)]
    bodies = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
    if len(bodies) != 1:
        return all_outputs
    inner = _jax.open_jaxpr(bodies[0])
    if len(inner.invars) != len(marks) or len(inner.outvars) != len(all_outputs):
        return all_outputs
    dependent = _follow(bodies[0], marks, past)
    if name != "scan":
        return dependent
    first, carried = _jax.scan_counts(eqn.params)
    while True:  # carried results are arguments of the next iteration
        previous = list(marks)
        for k in range(carried):
            marks[first + k] |= dependent[k]
        if marks == previous:
            return dependent
        dependent = _follow(bodies[0], marks, past)

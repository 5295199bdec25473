"""Flax NNX objects among the arguments: taken apart before, updated after."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

Finish = Callable[[Any, list[Any]], Any]


def purely(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Any, Finish]:
    """A function of arrays in place of one that may take NNX objects.

    Returns:
        A pure function, the tuple of values to call it with, and what to do with the tree and the
        leaves of its results: it gives the results of `f`, and has updated the objects.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not _has_objects(nnx, (args, kwargs)):
        return (
            lambda args, kwargs: f(*args, **kwargs),
            (args, kwargs),
            lambda tree, leaves: jax.tree.unflatten(tree, leaves),
        )
    graph, state = nnx.split((args, kwargs))
    out_graph: Any = None

    def pure(state: Any) -> Any:
        nonlocal out_graph
        new_args, new_kwargs = nnx.merge(graph, state)
        out = f(*new_args, **new_kwargs)
        out_graph, new_state = nnx.split((new_args, new_kwargs, out))
        return new_state

    def finish(tree: Any, leaves: list[Any]) -> Any:
        new_args, new_kwargs, out = nnx.merge(out_graph, jax.tree.unflatten(tree, leaves))
        nnx.update((args, kwargs), nnx.state((new_args, new_kwargs)))
        return out

    return pure, (state,), finish


def _has_objects(nnx: Any, tree: Any) -> bool:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Pytree | nnx.Variable))
    return any(isinstance(leaf, nnx.Pytree | nnx.Variable) for leaf in leaves)

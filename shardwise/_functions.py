"""Functions inside arguments and results: the activation of an Equinox module, say.

They are leaves of a pytree to JAX, and nothing that can be traced. Here each of them travels inside
the structure of the tree, so that a module can be an argument as it is.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax

from ._objects import is_object


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A function that is part of a tree's structure. The same function makes the same structure."""

    value: Callable[..., Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def keep_functions(tree: Any) -> Any:
    """The tree with each function inside it kept in its structure; a lone function is left."""
    if not any(map(_is_function, _leaves(tree))) or _is_function(tree):
        return tree
    return jax.tree.map(lambda x: Kept(x) if _is_function(x) else x, tree, is_leaf=_is_whole)


def give_back(tree: Any) -> Any:
    """The tree as it was."""
    if not any(isinstance(x, Kept) for x in _leaves(tree)):
        return tree
    return jax.tree.map(lambda x: x.value if isinstance(x, Kept) else x, tree, is_leaf=_is_whole)


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=_is_whole)


def _is_whole(x: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return isinstance(x, Kept) or (nnx is not None and is_object(nnx, x))


def _is_function(x: Any) -> bool:
    if not callable(x) or hasattr(x, "shape") or _is_whole(x):
        return False
    return jax.tree_util.all_leaves([x])

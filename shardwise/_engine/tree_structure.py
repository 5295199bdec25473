"""Flatten arguments and results into arrays, and rebuild them.

A user's class may validate its fields, such as a dataclass that checks the shape of a field. So an
object is rebuilt only from arrays, as in JAX, never from placeholders, and facts about a tree are
read from the objects themselves.

Functions among the leaves (the activation of an Equinox module) cannot be traced. They are stored
beside the arrays, so that a module can be an argument or a result.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax

from .nnx_objects import is_object

Path = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class StaticFunction:
    """A function among the leaves of a tree, compared by identity."""

    value: Callable[..., Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticFunction) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclasses.dataclass(frozen=True)
class TreeStructure:
    """A tree without its arrays."""

    tree: Any
    functions: tuple[tuple[int, StaticFunction], ...] = ()
    """The functions among the leaves, each with its number."""
    paths: tuple[Path, ...] = dataclasses.field(default=(), compare=False)
    """The path of each array, if requested."""

    @property
    def num_leaves(self) -> int:
        """Return the number of arrays."""
        return self.tree.num_leaves - len(self.functions)

    def arrays(self, leaves: Iterable[Any]) -> list[Any]:
        """Return the entries that belong to arrays, given one entry for each leaf."""
        functions = self._functions
        return [leaf for i, leaf in enumerate(leaves) if i not in functions]

    def unflatten(self, arrays: Iterable[Any]) -> Any:
        """Return the tree with these arrays."""
        functions, rest = self._functions, iter(arrays)
        leaves = [
            functions[i] if i in functions else next(rest) for i in range(self.tree.num_leaves)
        ]
        return jax.tree.unflatten(self.tree, leaves)

    @functools.cached_property
    def _functions(self) -> dict[int, Callable[..., Any]]:
        return {i: function.value for i, function in self.functions}

    def __str__(self) -> str:
        return str(self.tree)


def flatten(values: Any) -> tuple[list[Any], TreeStructure]:
    """Return the arrays of a tree, and its structure. A single function counts as an array."""
    leaves, tree = jax.tree.flatten(values)
    if jax.tree_util.treedef_is_leaf(tree):
        return leaves, TreeStructure(tree)
    structure = TreeStructure(
        tree, tuple((i, StaticFunction(x)) for i, x in enumerate(leaves) if is_function(x))
    )
    return structure.arrays(leaves), structure


def with_paths(form: TreeStructure, values: Any) -> TreeStructure:
    """Return the structure of a tree, with the path of each of its arrays."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(values))
    return dataclasses.replace(form, paths=tuple(form.arrays(paths)))


def is_whole(x: Any) -> bool:
    """Return whether this is an NNX object, which is one argument here and a tree to JAX."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and is_object(nnx, x)


def is_function(x: Any) -> bool:
    """Return whether a leaf of a tree is a function."""
    if not callable(x) or hasattr(x, "shape") or is_whole(x):
        return False
    return jax.tree_util.all_leaves([x])

"""Arguments and results taken apart into arrays, and put together again.

A class of the user's may look at what it is made of: a dataclass that checks the shape of its
field, say. So an object is put together from arrays alone, as JAX does it, never from numbers or
names that stand for them, and what has to be known of a tree is read off the objects themselves.

Functions among the leaves (the activation of an Equinox module) cannot be traced. They are kept
beside the arrays, so that a module can be an argument or a result as it is.
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
    """A function of a tree. The same function, and no other, makes the same tree."""

    value: Callable[..., Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticFunction) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclasses.dataclass(frozen=True)
class TreeStructure:
    """What a tree is besides its arrays."""

    tree: Any
    kept: tuple[tuple[int, StaticFunction], ...] = ()
    """The functions among the leaves, each with its number."""
    paths: tuple[Path, ...] = dataclasses.field(default=(), compare=False)
    """Where each array lies in it, if that was asked for."""

    @property
    def num_leaves(self) -> int:
        """How many arrays it has."""
        return self.tree.num_leaves - len(self.kept)

    def arrays(self, leaves: Iterable[Any]) -> list[Any]:
        """Those of all leaves, or of what there is for each of them, that are arrays."""
        kept = self._functions
        return [leaf for i, leaf in enumerate(leaves) if i not in kept]

    def put_together(self, arrays: Iterable[Any]) -> Any:
        """The tree with these arrays."""
        kept, rest = self._functions, iter(arrays)
        leaves = [kept[i] if i in kept else next(rest) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)

    @functools.cached_property
    def _functions(self) -> dict[int, Callable[..., Any]]:
        return {i: one.value for i, one in self.kept}

    def __str__(self) -> str:
        return str(self.tree)


def take_apart(values: Any) -> tuple[list[Any], TreeStructure]:
    """The arrays of a tree, and what puts it together. A lone function is left among them."""
    leaves, tree = jax.tree.flatten(values)
    if jax.tree_util.treedef_is_leaf(tree):
        return leaves, TreeStructure(tree)
    form = TreeStructure(
        tree, tuple((i, StaticFunction(x)) for i, x in enumerate(leaves) if is_function(x))
    )
    return form.arrays(leaves), form


def with_paths(form: TreeStructure, values: Any) -> TreeStructure:
    """The form of a tree, with the path of each of its arrays."""
    paths = (path for path, _ in jax.tree_util.tree_leaves_with_path(values))
    return dataclasses.replace(form, paths=tuple(form.arrays(paths)))


def is_whole(x: Any) -> bool:
    """Whether this is one argument to us and a tree to JAX: an NNX object."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and is_object(nnx, x)


def is_function(x: Any) -> bool:
    """Whether a part of a tree is a function, and no tree itself."""
    if not callable(x) or hasattr(x, "shape") or is_whole(x):
        return False
    return jax.tree_util.all_leaves([x])

"""NNX objects as flat lists of arrays, and back.

Flattening, rebuilding and hashing a model's graph in Python takes longer than a small step. So it
is done once per step: the compiled program takes a list of arrays and one static object, which
stands for the whole structure and is compared by identity.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx


class Held:
    """The variables of an object's state, and the arrays in them.

    Args:
        owner: The object.
        state: Its state, or a part of it, as `nnx.split` gives it: with the object's own variables.

    Attributes:
        arrays: The arrays.
        values: The tree of what the variables hold; most hold an array, some a tree of them.
    """

    def __init__(self, owner: Any, state: Any) -> None:
        self._owner, self._state = owner, state
        self._variables = jax.tree.leaves(state, is_leaf=_is_variable)
        values = [v.get_raw_value() if _is_variable(v) else v for v in self._variables]
        self.arrays, self.values = jax.tree.flatten(values)

    def structure(self) -> Any:
        """Return the tree of the state, variables and their metadata included."""
        return jax.tree.structure(self._state)

    def write(self, arrays: list[Any]) -> None:
        """Give the object new arrays."""
        if not all(map(_is_variable, self._variables)):  # a bare array can only be replaced
            nnx.update(self._owner, jax.tree.unflatten(self.structure(), arrays))
            return
        values = jax.tree.unflatten(self.values, arrays)
        for variable, value in zip(self._variables, values, strict=True):
            variable.set_raw_value(value)


class Kind:
    """The structure of a model and of its optimizer: what a program is compiled for.

    Attributes:
        model: The graph of the model.
        optimizer: The graph of the optimizer.
    """

    def __init__(self, model: Any, optimizer: Any, held: tuple[Held, ...]) -> None:
        self.model, self.optimizer = model, optimizer
        self._trees = tuple(part.structure() for part in held)

    def states(self, *parts: list[Any]) -> list[Any]:
        """Return lists of arrays as the states that they came from."""
        return [jax.tree.unflatten(tree, p) for tree, p in zip(self._trees, parts, strict=True)]

    def flat(self, *states: Any) -> list[list[Any]]:
        """States of this structure as lists of arrays."""
        return [tree.flatten_up_to(s) for tree, s in zip(self._trees, states, strict=True)]


def _is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)

"""NNX objects as flat lists of arrays, and back.

Flattening, rebuilding and hashing a model's graph in Python takes longer than a small step. So it
is done once per step: the compiled program takes a list of arrays and one static object, which
stands for the whole structure and is compared by identity.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx


class Variables:
    """The variables of an object's state, and the arrays in them.

    Args:
        owner: The object.
        state: Its state, or a part of it, as `nnx.split` gives it: with the object's own variables.

    Attributes:
        arrays: The arrays.
        values: The tree of the variables' values; most are an array, some a tree of arrays.
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
        """Set the arrays of the object."""
        if not all(map(_is_variable, self._variables)):  # a bare array can only be replaced
            nnx.update(self._owner, jax.tree.unflatten(self.structure(), arrays))
            return
        values = jax.tree.unflatten(self.values, arrays)
        for variable, value in zip(self._variables, values, strict=True):
            variable.set_raw_value(value)


class Kind:
    """The structure of a model and of its optimizer, for which a program is compiled.

    Attributes:
        model: The graph of the model.
        optimizer: The graph of the optimizer.
    """

    def __init__(self, model: Any, optimizer: Any, variables: tuple[Variables, ...]) -> None:
        self.model, self.optimizer = model, optimizer
        self._trees = tuple(part.structure() for part in variables)

    def states(self, *parts: list[Any]) -> list[Any]:
        """Rebuild states from lists of their arrays."""
        return [jax.tree.unflatten(tree, p) for tree, p in zip(self._trees, parts, strict=True)]

    def flat(self, *states: Any) -> list[list[Any]]:
        """Return states of this structure as lists of arrays."""
        return [tree.flatten_up_to(s) for tree, s in zip(self._trees, states, strict=True)]


def _is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)

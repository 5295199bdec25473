"""The state of training with plain params or Linen variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any

import jax


def kinds_of(opt_state: Any, params: Any = None) -> list[str]:
    """What an optimizer's state is made of, by name: `ScaleByAdamState`, `EmptyState` ...

    Args:
        opt_state: The state.
        params: What it trains; it holds more of the same kinds, whose names are the user's.
    """
    theirs = set(_named_tuples(params))
    return [kind.__name__ for kind in _named_tuples(opt_state) if kind not in theirs]


def _named_tuples(tree: Any) -> list[type]:
    found: list[type] = []

    def look(node: Any) -> bool:
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            found.append(type(node))
        return False

    jax.tree.leaves(tree, is_leaf=look)
    return found


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "opt_state", "step", "collections"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState:
    """All that a step changes.

    Attributes:
        params: What is trained.
        opt_state: The optimizer's state.
        step: How many steps were taken.
        collections: Linen's other collections, such as `batch_stats`; None for plain params.
    """

    params: Any
    opt_state: Any
    step: Any
    collections: Any = None

    def remember(self, kind: Any, leaves: list[Any]) -> None:
        """Note of what kind the step that made the state found it, and its leaves, all of them."""
        object.__setattr__(self, "_made", (kind, leaves))

    def recall(self, leaves: list[Any]) -> Any:
        """The kind that was noted, if these are the leaves that were, and still there; or None.

        Params may be replaced in a state that was made, so all are compared, by identity. A step
        gives all memory of a state away or none, so one is asked whether it is gone.
        """
        kind, made = self.__dict__.get("_made", (None, ()))
        same = len(leaves) == len(made) and all(map(is_, leaves, made))
        return kind if same and not (leaves and leaves[0].is_deleted()) else None

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: without what a step has noted."""
        return {key: value for key, value in self.__dict__.items() if key != "_made"}

    @property
    def variables(self) -> Any:
        """What the loss is given: the params, or all variables of a Linen module."""
        if self.collections is None:
            return self.params
        return {"params": self.params, **self.collections}

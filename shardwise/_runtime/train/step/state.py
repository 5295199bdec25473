"""The state of training with plain params or Linen variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax


def kinds_of(opt_state: Any, params: Any = None) -> list[str]:
    """Return the type names in an optimizer's state: `ScaleByAdamState`, `EmptyState` ...

    Args:
        opt_state: The state.
        params: The params; their own types are left out.
    """
    param_kinds = set(_named_tuples(params))
    return [kind.__name__ for kind in _named_tuples(opt_state) if kind not in param_kinds]


def _named_tuples(tree: Any) -> list[type]:
    kinds: list[type] = []

    def look(node: Any) -> bool:
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            kinds.append(type(node))
        return False

    jax.tree.leaves(tree, is_leaf=look)
    return kinds


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "opt_state", "step", "collections"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState:
    """The state of a training.

    Attributes:
        params: The trained parameters.
        opt_state: The optimizer's state.
        step: The number of steps taken.
        collections: Linen's other collections, such as `batch_stats`; None for plain params.
    """

    params: Any
    opt_state: Any
    step: Any
    collections: Any = None

    @property
    def variables(self) -> Any:
        """The first argument of the loss: the params, or all variables of a Linen module."""
        if self.collections is None:
            return self.params
        return {"params": self.params, **self.collections}

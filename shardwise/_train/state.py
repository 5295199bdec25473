"""The state of training with plain params or Linen variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax


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

    @property
    def variables(self) -> Any:
        """What the loss is given: the params, or all variables of a Linen module."""
        if self.collections is None:
            return self.params
        return {"params": self.params, **self.collections}

"""A part of a batch as a loss is called with it: where its rows lie, and its random keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Place:
    """Where in the batch a part lies, and the randomness that belongs to it.

    Attributes:
        key: The key of this step, the same on all devices.
        part: The number of this part, counted over the whole batch.
        rows: How many rows it has.
        count: Where the real rows end, counted over the whole batch, if some may not be real.
        shift: Gives by how much padding before this part has moved its rows, where there is some.
    """

    key: Any
    part: Any
    rows: int
    count: Any = None
    shift: Callable[[], Any] | None = None

    def shard_key(self) -> Any:
        """One key for this part."""
        return jax.random.fold_in(self.key, self.part)

    def example_keys(self) -> Any:
        """One key per row, made from its place in the whole batch.

        Padding has the key of the row that it copies: with another one it could make a NaN.
        """
        index = self.part * self.rows + jnp.arange(self.rows)
        if self.count is not None:
            index = jnp.minimum(index, self.count - 1)
        if self.shift is not None:
            index = index - self.shift()
        return jax.vmap(lambda k: jax.random.fold_in(self.key, k))(index)


LossOf = Callable[[Any, Any, Any, Place], tuple[Any, Any]]
"""A loss as the body calls it: params, other state, rows and place to output and new state."""

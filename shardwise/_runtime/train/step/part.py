"""A part of a batch: the position of its rows, and their random keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class BatchPart:
    """The position of a part in the batch, and its random keys.

    Attributes:
        key: The key of this step, the same on all devices.
        part: The number of this part in the whole batch.
        rows: How many rows it has.
        count: The number of real rows in the whole batch, if there may be padding.
        shift: Returns the number of rows of padding before this part, where there is any.
    """

    key: Any
    part: Any
    rows: int
    count: Any = None
    shift: Callable[[], Any] | None = None

    def shard_key(self) -> Any:
        """Return one key for this part."""
        return jax.random.fold_in(self.key, self.part)

    def example_keys(self) -> Any:
        """Return one key per row, derived from its position in the whole batch.

        Padding has the key of the row that it copies: with another key it could become NaN.
        """
        index = self.part * self.rows + jnp.arange(self.rows)
        if self.count is not None:
            index = jnp.minimum(index, self.count - 1)
        if self.shift is not None:
            index = index - self.shift()
        return jax.vmap(lambda k: jax.random.fold_in(self.key, k))(index)


LossOf = Callable[[Any, Any, Any, BatchPart], tuple[Any, Any]]
"""A loss as the body calls it: (params, other state, rows, place) to (output, new state)."""

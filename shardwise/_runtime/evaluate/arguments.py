"""Validate the arguments of `evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..._base.errors import ArgumentError, ShardingError, UnsupportedError, a_type
from ..._mesh import is_count
from .data.kinds import open_source
from .data.source import DataSource


def open_data(data: Any, state: Any) -> DataSource:
    """Return the source of the data; raise with a hint if data and state look swapped."""
    try:
        return open_source(data)
    except (ShardingError, UnsupportedError) as error:
        shapes = [getattr(leaf, "shape", ()) for leaf in jax.tree.leaves(state)]
        rows = {shape[0] if shape else None for shape in shapes}
        if len(shapes) < 2 or len(rows) > 1 or None in rows:
            raise
        swapped = (
            f"Every leaf of the state has {rows.pop()} rows, like data: are the two swapped? "
            "The order is sw.evaluate(fn, state, data)."
        )
        raise type(error)(f"{error}\n  {swapped}") from None


def check_function(fn: Any) -> None:
    """Raise unless this is a function."""
    if not callable(fn):
        raise ArgumentError(
            f"fn is {a_type(fn)}",
            where="sw.evaluate",
            rule="evaluate takes a function of a state and a batch, then the state, then the data.",
            remedy="sw.evaluate(lambda params, batch: ..., params, data)",
        )


def check_batch(batch: int | None) -> None:
    """Raise unless this is a number of examples, or None."""
    if batch is not None and (not is_count(batch) or batch < 1):
        raise ShardingError(
            f"got {batch!r}.",
            where="argument 'batch'",
            rule="It is the number of examples per step, at least 1.",
            remedy="batch=256, or batch=None to choose it automatically.",
        )


def names_of(fn: Callable[..., Any]) -> dict[str, str]:
    """Return facts about a run that may differ when it resumes, for messages."""
    module = getattr(fn, "__module__", "")
    name = getattr(fn, "__qualname__", type(fn).__name__)
    return {"the name of fn": f"{module}.{name}", "the version of JAX": jax.__version__}

"""Lists of numbers in examples and batches, as Hugging Face datasets have them: arrays.

To JAX such a list is a list of scalars, each of them a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ...._base.errors import ShardingError, UnsupportedError
from .source import refuse_masked


def leaves_of(tree: Any, *, whole: bool = True) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the leaves with their paths, and the structure; a list of numbers is a leaf.

    Args:
        tree: An example or a batch.
        whole: Whether the tree itself may be such a leaf.
    """
    return jax.tree.flatten_with_path(
        tree, is_leaf=lambda x: (whole or x is not tree) and _is_numbers(x)
    )


def _is_numbers(value: Any) -> bool:
    """Return whether it is a list of numbers, or of lists of numbers.

    None and empty lists among them are accepted here, and rejected by `array_of`.
    """
    members = [x for x in _members(value) if x is not None] if type(value) is list else []
    return bool(members) and all(isinstance(x, int | float | complex | np.generic) for x in members)


def _members(value: list[Any]) -> Iterator[Any]:
    """Yield the entries of nested lists."""
    for x in value:
        if type(x) is list:
            yield from _members(x)
        else:
            yield x


def array_of(leaf: Any, where: str, name: str) -> np.ndarray:
    """Return a leaf as a NumPy array.

    Raises:
        ShardingError: It is a list of lists that differ in length, or has None in it.
        UnsupportedError: It is a masked array.
    """
    refuse_masked(leaf, where)
    if type(leaf) is not list:
        return np.asarray(leaf)
    if None in _members(leaf):
        raise ShardingError(
            f"data{name} is a list of numbers with None in it.",
            where=where,
            rule="A list of numbers is read as an array, with a number at each position.",
            remedy="replace it by a number, with a mask that fn uses as weights.",
        )
    try:
        return np.array(leaf)
    except ValueError as error:
        raise ShardingError(
            f"data{name} is a list of lists that differ in length.",
            where=where,
            rule="A list of numbers is read as an array, with one length along each dimension.",
            remedy="pad to one length, with a mask that fn uses as weights.",
        ) from error


def refuse_bare(example: Any, where: str) -> None:
    """Raise for an example that is a list of numbers, which is ambiguous."""
    if _is_numbers(example):
        raise UnsupportedError(
            f"it is a list of {len(example)}, with numbers in it.",
            where=where,
            rule="It could be one array or several leaves.",
            remedy="np.asarray(example) for an array, tuple(example) for leaves; in a dict of "
            "lists, "
            "each list is an array.",
        )

"""Lists of numbers in examples and batches: an array each, as Hugging Face datasets have them.

To JAX such a list is that many scalars, and a batch of them would come column by column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ...._base.errors import ShardingError, UnsupportedError


def leaves_of(tree: Any, *, whole: bool = True) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the leaves with their paths, and the structure; a list of numbers is a leaf.

    Args:
        tree: An example or a batch.
        whole: Whether it may itself be such a leaf.
    """
    return jax.tree.flatten_with_path(
        tree, is_leaf=lambda x: (whole or x is not tree) and _is_numbers(x)
    )


def _is_numbers(value: Any) -> bool:
    """Return whether it is a list of numbers, or of lists of them.

    One that also has None or empty lists in it was meant as an array, and cannot be one.
    """
    found = [x for x in _members(value) if x is not None] if type(value) is list else []
    return bool(found) and all(isinstance(x, int | float | complex | np.generic) for x in found)


def _members(value: list[Any]) -> Iterator[Any]:
    """Yield what is in a list and in the lists in it."""
    for x in value:
        if type(x) is list:
            yield from _members(x)
        else:
            yield x


def array_of(leaf: Any, where: str, name: str) -> np.ndarray:
    """Return a leaf as NumPy has it.

    Raises:
        ShardingError: It is a list of lists that differ in length, or has None in it.
    """
    if type(leaf) is not list:
        return np.asarray(leaf)
    if None in _members(leaf):
        raise ShardingError(
            f"data{name} is a list of numbers with None in it.",
            where=where,
            rule="A list of numbers is read as an array, with a number in each place.",
            remedy="put a number there, with a mask that fn uses as weights.",
        )
    try:
        return np.array(leaf)
    except ValueError as error:
        raise ShardingError(
            f"data{name} is a list whose lists differ in length.",
            where=where,
            rule="A list of numbers is read as an array, with one length along each dimension.",
            remedy="pad to one length, with a mask that fn uses as weights.",
        ) from error


def refuse_bare(example: Any, where: str) -> None:
    """Refuse an example that is a list of numbers and nothing else: it could be two things."""
    if _is_numbers(example):
        raise UnsupportedError(
            f"it is a list of {len(example)}, with numbers in it.",
            where=where,
            rule="It could be one array or several leaves.",
            remedy="np.asarray(example) for the one, tuple(example) for the other; "
            "of a dict of lists, each list is an array.",
        )

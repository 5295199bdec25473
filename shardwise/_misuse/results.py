"""What a traced function returns that is no array, told with the place of that function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._errors import ArgumentError, explain_error, name_of
from .._program.where import place_of

_LATER = {
    "coroutine": "a coroutine function (async def)",
    "async_generator": "an asynchronous generator function (async def with yield)",
    "generator": "a generator function (it has a yield)",
}
"""What functions are called of which a call runs nothing yet, by the type of what it gives."""


def refuse_later(f: Callable[..., Any], result: Any) -> None:
    """Refuse a function of which a call runs nothing yet.

    Raises:
        ArgumentError: It is a coroutine function, or a generator function.
    """
    kind = type(result).__name__
    if kind not in _LATER:
        return
    if hasattr(result, "close"):
        result.close()  # or Python warns that nobody has awaited it
    raise ArgumentError(
        explain_error(
            f"{name_of(f)} is {_LATER[kind]}",
            where=_place(f),
            rule="A function that is traced is called once, and what it returns is the result.",
            remedy="an ordinary function that returns arrays: def, and return.",
        )
    )


def refuse_results(f: Callable[..., Any], leaves: Sequence[Any]) -> None:
    """Refuse what `f` returned, where a leaf of it is no array.

    Raises:
        ArgumentError: It says which function that is, and of which type the leaf.
    """
    for leaf in leaves:
        if not _is_array(leaf):
            raise ArgumentError(
                explain_error(
                    f"the function returns something of type {type(leaf).__name__}",
                    where=_place(f),
                    rule="A function that is traced returns arrays: one, or a pytree of them.",
                    remedy="return what is computed, and keep the rest outside of the function.",
                )
            )


def _is_array(leaf: Any) -> bool:
    """Whether it is one to JAX; an array of a type that JAX has not, it tells of by itself."""
    if hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__"):
        return True
    try:
        jax.typeof(leaf)
    except TypeError:
        return False
    return True


def _place(f: Callable[..., Any]) -> str:
    """Where a function is written, `train.py:12 (step)`; its name alone where there is no line."""
    place, name = place_of(f), name_of(f)
    return f"{place} ({name})" if place.file else f"{name}()"

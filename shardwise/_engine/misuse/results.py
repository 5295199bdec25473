"""Results of a traced function that are not arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..._base.errors import ArgumentError, name_of
from ..._program.where import place_of

_NOT_RUN = ("coroutine", "async_generator", "generator")
"""Types of results of functions that have not run yet."""


def refuse_not_run(f: Callable[..., Any], result: Any) -> None:
    """Raise for a result of `f` that has not run yet, before JAX looks for arrays in it.

    Raises:
        ArgumentError: It is a coroutine or a generator.
    """
    if type(result).__name__ in _NOT_RUN:
        raise _no_array(f, result)


def refuse_results(f: Callable[..., Any], leaves: Sequence[Any]) -> None:
    """Raise if a leaf of the result of `f` is not an array.

    JAX itself reports an array of an unsupported dtype.

    Raises:
        ArgumentError: The error names the function and the type of the leaf.
    """
    for leaf in leaves:
        if hasattr(leaf, "dtype") or hasattr(leaf, "__jax_array__"):
            continue
        try:
            jax.typeof(leaf)
        except (TypeError, OverflowError) as error:
            raise _no_array(f, leaf, error) from error


def _no_array(f: Callable[..., Any], leaf: Any, error: Exception | None = None) -> ArgumentError:
    kind = type(leaf).__name__
    remedy = "return arrays only, and compute the rest outside the function."
    if kind in _NOT_RUN:
        remedy = "use def and return instead of async def, yield or (... for ... in ...)."
        if hasattr(leaf, "close"):
            leaf.close()  # otherwise Python warns that it was never awaited
    return ArgumentError(
        f"the function returns something of type {kind}"
        + (f": {error}" if isinstance(error, OverflowError) else ""),
        where=_place(f),
        rule="A function that is traced returns arrays: one, or a pytree of them.",
        remedy=remedy,
    )


def _place(f: Callable[..., Any]) -> str:
    """Return where a function is defined, `train.py:12 (step)`; its name if there is no line."""
    location, name = place_of(f), name_of(f)
    return f"{location} ({name})" if location.file else f"{name}()"

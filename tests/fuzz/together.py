"""Several calls, compiled as one program.

Compiling costs about as much for one small program as for several. What cannot be compiled or run
with the others is found by halves, so that every call has an outcome of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

Call = tuple[Callable[..., Any], Sequence[Any]]
"""A function and its arguments."""


def call_together(calls: Sequence[Call]) -> list[Any]:
    """What each call returns under `jit`, or the exception that it raises."""
    jitted = [(jax.jit(f), args) for f, args in calls]
    outcomes = [result_of(f.trace, args) for f, args in jitted]
    traced = [k for k, traced in enumerate(outcomes) if not isinstance(traced, Exception)]
    results = _in_halves([jitted[k] for k in traced])
    for k, result in zip(traced, results, strict=True):
        outcomes[k] = result
    return outcomes


def result_of(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return f(*args)
    except Exception as error:
        return error


def _in_halves(calls: list[Call]) -> list[Any]:
    if not calls:
        return []
    functions, args = zip(*calls, strict=True)

    def everything(*args: Any) -> list[Any]:
        return [f(*own) for f, own in zip(functions, args, strict=True)]

    try:
        return jax.block_until_ready(jax.jit(everything)(*args))
    except Exception as error:
        if len(calls) == 1:
            return [error]
    half = len(calls) // 2
    return [*_in_halves(calls[:half]), *_in_halves(calls[half:])]

"""A function that is handed its mesh by name, and one that ought to be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import ArgumentError, explain_error, text_of


def refuse_no_mesh(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Say that a function that takes a mesh is not given one, before Python does."""
    found = _mesh_parameter(f)
    if found is None or "mesh" in kwargs or _hands_on(_parameters(f, follow_wrapped=False) or {}):
        return  # a decorator may name the mesh itself
    index, wanted = found
    by_position = wanted.kind is wanted.POSITIONAL_OR_KEYWORD and len(args) > index
    if by_position or wanted.default is not wanted.empty:
        return
    raise ArgumentError(
        explain_error(
            "it takes a mesh, and none is given",
            where=f"{getattr(f, '__name__', type(f).__name__)}()",
            rule="A function with a parameter mesh is given the mesh that it is to run on.",
            remedy="name one beside the function: mesh=sw.mesh(data=8).",
        )
    )


def not_handed_on(f: Callable[..., Any], error: Exception) -> ArgumentError | None:
    """What takes any keyword lacks the mesh: nobody could know that it wants one."""
    unread = isinstance(error, KeyError) and error.args == ("mesh",)
    lacks = isinstance(error, TypeError) and re.search(r"missing .*'mesh'", text_of(error))
    if not (lacks or unread) or not _hands_on(_parameters(f, follow_wrapped=False) or {}):
        return None
    name = getattr(f, "__name__", type(f).__name__)
    return ArgumentError(
        explain_error(
            "it takes any keyword, and was not given the mesh: "
            f"{type(error).__name__}: {text_of(error)}",
            where=f"{name}()",
            rule="A function is given the mesh where mesh is among its parameters, or among those "
            "of the function that it wraps.",
            remedy="a parameter mesh of its own; or, on the function that a decorator returns, "
            "@functools.wraps(f).",
        )
    )


def takes_mesh(f: Callable[..., Any]) -> bool:
    """Whether a function can be given a mesh by the name `mesh`."""
    return _mesh_parameter(f) is not None


def without_mesh(f: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function that has its mesh: it may be named again, and need not be.

    JAX's own `custom_vjp` and the like want every argument of a call by its place.
    """
    own = inspect.signature(f)
    kept = [one for name, one in own.parameters.items() if name != "mesh"]
    if not any(one.kind is one.VAR_KEYWORD for one in kept):
        kept.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
    return own.replace(parameters=kept)


def _mesh_parameter(f: Callable[..., Any]) -> tuple[int, inspect.Parameter] | None:
    """The parameter `mesh` that a function can be given by name, and its position."""
    own = _parameters(f, follow_wrapped=False)
    if hasattr(f, "plan") and hasattr(f, "__signature__"):
        return None  # `sw.simulate` has given it its mesh
    if own is None or _hands_on(own):
        # A decorator that hands on what it is given takes what the function inside takes.
        own = _parameters(inspect.unwrap(f), follow_wrapped=True)
    for index, (name, one) in enumerate((own or {}).items()):
        if name == "mesh" and one.kind is not one.POSITIONAL_ONLY:
            return index, one
    return None


def _hands_on(own: Mapping[str, inspect.Parameter]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in own.values())


def _parameters(f: Callable[..., Any], follow_wrapped: bool) -> Mapping[str, Any] | None:
    try:
        return inspect.signature(f, follow_wrapped=follow_wrapped).parameters
    except (TypeError, ValueError):
        return None

"""Functions that take their mesh as an argument named `mesh`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import ArgumentError, text_of


def refuse_no_mesh(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise an error if a function takes a mesh and none is passed, before Python does."""
    parameter = _mesh_parameter(f)
    if (
        parameter is None
        or "mesh" in kwargs
        or _takes_any_keyword(_parameters(f, follow_wrapped=False) or {})
    ):
        return  # a decorator may name the mesh itself
    index, mesh = parameter
    by_position = mesh.kind is mesh.POSITIONAL_OR_KEYWORD and len(args) > index
    if by_position or mesh.default is not mesh.empty:
        return
    raise ArgumentError(
        "it takes a mesh, and none is given",
        where=f"{getattr(f, '__name__', type(f).__name__)}()",
        rule="A function with a parameter mesh is given the mesh that it is to run on.",
        remedy="name one beside the function: mesh=sw.mesh(data=8).",
    )


def mesh_not_passed(f: Callable[..., Any], error: Exception) -> ArgumentError | None:
    """Return the error for a function of any keywords that needs a mesh and was not passed one."""
    is_unread = isinstance(error, KeyError) and error.args == ("mesh",)
    is_missing = isinstance(error, TypeError) and re.search(r"missing .*'mesh'", text_of(error))
    if not (is_missing or is_unread) or not _takes_any_keyword(
        _parameters(f, follow_wrapped=False) or {}
    ):
        return None
    name = getattr(f, "__name__", type(f).__name__)
    return ArgumentError(
        "it takes any keyword, and was not given the mesh: "
        f"{type(error).__name__}: {text_of(error)}",
        where=f"{name}()",
        rule="A function is given the mesh where mesh is among its parameters, or among those "
        "of the function that it wraps.",
        remedy="a parameter mesh of its own; or, on the function that a decorator returns, "
        "@functools.wraps(f).",
    )


def takes_mesh(f: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `mesh`."""
    return _mesh_parameter(f) is not None


def without_mesh(f: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function whose mesh is bound: `mesh` becomes an optional keyword.

    JAX's `custom_vjp` and its like need every argument of a call by position.
    """
    signature = inspect.signature(f)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "mesh"]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        parameters.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
    return signature.replace(parameters=parameters)


def _mesh_parameter(f: Callable[..., Any]) -> tuple[int, inspect.Parameter] | None:
    """Return the parameter `mesh` that can be passed by name, and its position."""
    parameters = _parameters(f, follow_wrapped=False)
    if hasattr(f, "plan") and hasattr(f, "__signature__"):
        return None  # `sw.simulate` has bound the mesh
    if parameters is None or _takes_any_keyword(parameters):
        # A decorator that passes all keywords on takes what the wrapped function takes.
        parameters = _parameters(inspect.unwrap(f), follow_wrapped=True)
    for index, (name, parameter) in enumerate((parameters or {}).items()):
        if name == "mesh" and parameter.kind is not parameter.POSITIONAL_ONLY:
            return index, parameter
    return None


def _takes_any_keyword(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _parameters(f: Callable[..., Any], follow_wrapped: bool) -> Mapping[str, Any] | None:
    try:
        return inspect.signature(f, follow_wrapped=follow_wrapped).parameters
    except (TypeError, ValueError):
        return None

"""Functions that take their mesh as an argument named `mesh`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .calls import parameters_of
from .errors import ArgumentError, text_of


def refuse_no_mesh(f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if a function takes a mesh and none is passed, before Python does."""
    parameter = _mesh_parameter(f)
    if parameter is None or "mesh" in kwargs or _takes_any_keyword(f):
        return  # a decorator may pass the mesh
    index, mesh = parameter
    by_position = mesh.kind is mesh.POSITIONAL_OR_KEYWORD and len(args) > index
    if by_position or mesh.default is not mesh.empty:
        return
    raise ArgumentError(
        "it takes a mesh, and none was passed",
        where=f"{getattr(f, '__name__', type(f).__name__)}()",
        rule="A function with a parameter mesh is called with the mesh that it runs on.",
        remedy="pass one: mesh=sw.mesh(data=8).",
    )


def mesh_not_passed(f: Callable[..., Any], error: Exception) -> ArgumentError | None:
    """Return the error for a function of `**kwargs` that needs a mesh and was not passed one."""
    is_unread = isinstance(error, KeyError) and error.args == ("mesh",)
    is_missing = isinstance(error, TypeError) and re.search(r"missing .*'mesh'", text_of(error))
    if not (is_missing or is_unread) or not _takes_any_keyword(f):
        return None
    name = getattr(f, "__name__", type(f).__name__)
    return ArgumentError(
        f"it takes **kwargs and was not passed the mesh: {type(error).__name__}: {text_of(error)}",
        where=f"{name}()",
        rule="A function is passed the mesh if it, or the function that it wraps, has a parameter "
        "mesh.",
        remedy="add a parameter mesh; or put @functools.wraps(f) on the function that the "
        "decorator returns.",
    )


def takes_mesh(f: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `mesh`."""
    return _mesh_parameter(f) is not None


def without_mesh(f: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function whose mesh is bound: `mesh` becomes an optional keyword.

    `jax.custom_vjp` and similar transforms need every argument of a call by position.
    """
    signature = inspect.signature(f)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "mesh"]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        parameters.append(inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD))
    return signature.replace(parameters=parameters)


def _mesh_parameter(f: Callable[..., Any]) -> tuple[int, inspect.Parameter] | None:
    """Return the parameter `mesh` that can be passed by name, and its position."""
    if hasattr(f, "plan") and hasattr(f, "__signature__"):
        return None  # `sw.simulate` has bound the mesh
    takes = parameters_of(f, follow_wrapped=False)
    if takes is None or _takes_any_keyword(f):
        # A decorator that passes all keywords on takes what the wrapped function takes.
        takes = parameters_of(inspect.unwrap(f))
    for index, parameter in enumerate(takes or ()):
        if parameter.name == "mesh" and parameter.kind is not parameter.POSITIONAL_ONLY:
            return index, parameter
    return None


def _takes_any_keyword(f: Callable[..., Any]) -> bool:
    takes = parameters_of(f, follow_wrapped=False) or ()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes)

"""Signature errors of public functions: too many arguments, too few, or an unknown keyword.

Python reports `fit() got an unexpected keyword argument 'epochs'` and nothing else. `public` turns
such a call into an error that also lists the parameters and suggests a correct call. It acts only
after Python has raised, so a correct call costs one frame, and signatures, types and documentation
are those of the function.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .errors import ArgumentError, a_type, name_of, note, text_of

T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C")
Kind = inspect.Parameter
ONLY = Kind.KEYWORD_ONLY
BY_POSITION = (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD)
NAMED = (Kind.POSITIONAL_OR_KEYWORD, ONLY)

DEVICES = "a number of devices is the size of a mesh axis: mesh=sw.mesh(data=8)."
"""The remedy for a keyword `devices=8`."""


def parameters_of(f: Callable[..., Any], follow_wrapped: bool = True) -> list[Kind] | None:
    """Return the parameters of a function; None if Python does not know them."""
    try:
        return [*inspect.signature(f, follow_wrapped=follow_wrapped).parameters.values()]
    except (TypeError, ValueError):
        return None


def parameter_names(f: Callable[..., Any]) -> list[str]:
    """Return the names of the positional parameters of a function, if known."""
    return [p.name for p in parameters_of(f) or () if p.kind in BY_POSITION]


def public(called: str, **remedies: str) -> Callable[[T], T]:
    """Make signature errors of a public function, method or class explain the correct call.

    Args:
        called: The public name: `sw.fit`.
        **remedies: The remedies for keywords that other libraries use; under `more`, the remedy for
            too many positional arguments.
    """

    def decorate(f: T) -> T:
        target: Any = f
        if not isinstance(target, type):
            return _with_signature_errors(f, called, remedies)
        target.__init__ = _with_signature_errors(target.__init__, called, remedies)
        return f

    return decorate


def public_methods(called: str) -> Callable[[type[C]], type[C]]:
    """Apply `public` to all public methods of a class, and to calls of its instances."""

    def decorate(cls: type[C]) -> type[C]:
        for name, f in inspect.getmembers(cls, inspect.isfunction):
            inherited = f.__module__.partition(".")[0] != __name__.partition(".")[0]
            if inherited or (name.startswith("_") and name != "__call__"):
                continue
            wrapped = _with_signature_errors(
                f, called if name == "__call__" else f"{called}.{name}", {}
            )
            static = isinstance(inspect.getattr_static(cls, name), staticmethod)
            setattr(cls, name, staticmethod(wrapped) if static else wrapped)
        return cls

    return decorate


def _with_signature_errors(f: Any, called: str, remedies: Mapping[str, str]) -> Any:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest shows the lines around it
        try:
            return f(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise  # from inside the function
        raise _signature_error(f, called, remedies, args, kwargs)

    return call


def _signature_error(
    f: Any, called: str, remedies: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ArgumentError:
    """Return the error for a call that does not fit the signature."""
    takes = list(inspect.signature(f).parameters.values())
    if takes and takes[0].name == "self":
        takes, args = takes[1:], args[1:]
    known = {p.name for p in takes if p.kind in NAMED}
    unknown = [name for name in kwargs if name not in known]
    if unknown:
        problem = f"there is no argument {', '.join(f'{name}=' for name in unknown)}"
        remedy = remedies.get(unknown[0]) or _instead_of(unknown[0], takes, called, len(args))
    else:
        problem = _refusal(takes, args, kwargs)
        too_many = problem.startswith("too many")
        remedy = (too_many and remedies.get("more")) or _example(takes, called)
    return ArgumentError(problem, where=called, rule=_rule(takes), remedy=remedy)


def _instead_of(name: str, takes: Sequence[Kind], called: str, given: int) -> str:
    """Return the remedy for an unknown keyword beside this many arguments by position."""
    positional = {p.name for p in takes[:given] if p.kind in BY_POSITION}
    keywords = [p.name for p in takes if p.kind in NAMED and p.name not in positional]
    spellings = {alias: name for name in keywords for alias in (name, name.replace("_", ""))}
    if matches := difflib.get_close_matches(name.lower(), spellings, n=1):
        return f"did you mean {spellings[matches[0]]}=?"
    if any(p.kind is Kind.VAR_POSITIONAL for p in takes):
        return f"bind it to the function first: {called}(functools.partial(f, {name}=...), ...)"
    return f"leave it out: {_example(takes, called)}"


def _rule(takes: Sequence[Kind]) -> str:
    """List the parameters, as a sentence."""
    positional = [p.name for p in takes if p.kind in BY_POSITION]
    rest = next((p.name for p in takes if p.kind is Kind.VAR_POSITIONAL), "")
    positional += [f"*{rest}"] * bool(rest)
    keywords = [f"{p.name}=" for p in takes if p.kind is ONLY]
    parts = [", ".join(positional)] * bool(positional)
    parts += [f"by name {', '.join(keywords)}"] * bool(keywords)
    return f"It takes {'; '.join(parts) or 'no arguments'}."


def _example(takes: Sequence[Kind], called: str) -> str:
    """Return the shortest correct call."""
    arguments = [p.name for p in takes if p.kind in BY_POSITION and p.default is Kind.empty]
    arguments += [f"*{p.name}" for p in takes if p.kind is Kind.VAR_POSITIONAL]
    arguments += [f"{p.name}=..." for p in takes if p.kind is ONLY and p.default is Kind.empty]
    arguments += ["mesh=mesh"] * any(p.kind is Kind.VAR_POSITIONAL for p in takes)
    return f"{called}({', '.join(arguments)})"


def called_wrongly(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    description: str = "",
    rule: str = "The function is called with the arguments that follow it.",
    remedy: str = "",
) -> ArgumentError | None:
    """Return the error to raise if the user's function does not take these arguments, else None.

    A `TypeError` from a call inside that function is not such an error. `description` is that of
    the arguments, `rule` states where they come from, `remedy` replaces the default remedy.
    """
    if not isinstance(error, TypeError) or not _REFUSED.search(text_of(error)):
        return None
    refusal = binds(f, args, kwargs)
    if not refusal:
        return None
    name = name_of(f)
    is_packed = len(args) == 1 and isinstance(args[0], tuple | list)
    signature = inspect.signature(f)
    if is_packed and not binds(f, args[0], kwargs):
        kind, names = type(args[0]).__name__, ", ".join(signature.parameters)
        remedy = f"pass them separately, not as one {kind}: {names}"
    remedy = remedy or f"call it as {name}{signature}"
    keywords = (f"{key}=" for key in kwargs if key != "mesh")  # shardwise may have added the mesh
    description = description or ", ".join([*map(a_type, args), *keywords]) or "nothing"
    return ArgumentError(
        f"it is called with {description}: {refusal}",
        where=f"{name}()",
        rule=rule,
        remedy=remedy,
    )


def note_packed(error: Exception, args: Sequence[Any]) -> None:
    """Add a note to the user's own error if the arguments were passed as one tuple or list."""
    if not isinstance(error, AttributeError | TypeError) or len(args) != 1:
        return
    kind = type(args[0])
    if kind in (tuple, list) and re.search(rf"\b{kind.__name__}\b", text_of(error)):
        note(
            error,
            f"shardwise: the function was called with one argument, a {kind.__name__} of "
            f"{len(args[0])}. Pass its arguments separately: f, a, b and not f, (a, b).",
        )


def binds(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> str:
    """Return why a function cannot be called with these arguments; "" if it can, or if unknown."""
    takes = parameters_of(f)
    return "" if takes is None else _refusal(takes, args, kwargs or {})


def _refusal(takes: Sequence[Kind], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return what Python says about a call that does not fit these parameters; "" if it fits."""
    try:
        inspect.Signature(takes).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


_REFUSED = re.compile(
    r"missing (\d+|a) required|takes .* positional argument|unexpected keyword argument"
    r"|multiple values for|too many positional"
)
"""How Python, `inspect` and `jax.jit` report a call that does not fit the signature."""

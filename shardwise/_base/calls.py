"""Calls that Python refuses: an argument too many, one too few, or one by a name that is not there.

Python says `fit() got an unexpected keyword argument 'epochs'`, and no more. `public` makes such a
call an error like all others: what was found, what there is, and what was probably meant. It acts
only once Python has refused, so a right call costs one frame, and signatures, types and
documentation are those of the function.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .errors import ArgumentError, a_type, explain_error, name_of, note, text_of

T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C")
Kind = inspect.Parameter

DEVICES = "a number of devices is the size of a mesh axis: mesh=sw.mesh(data=8)."
"""What is meant by `devices=8`."""


def public(called: str, **meant: str) -> Callable[[T], T]:
    """Have a public function, method or class say in words that it is called wrongly.

    Args:
        called: What people write: `sw.fit`.
        **meant: For names that people bring from elsewhere, what to do here instead; under `more`,
            what to do with more arguments by position than it takes.
    """

    def decorate(f: T) -> T:
        made: Any = f
        if not isinstance(made, type):
            return _telling(f, called, meant)
        made.__init__ = _telling(made.__init__, called, meant)
        return f

    return decorate


def public_methods(called: str) -> Callable[[type[C]], type[C]]:
    """The same for all public methods of a class, and for calling what is made of it."""

    def decorate(cls: type[C]) -> type[C]:
        for name, f in inspect.getmembers(cls, inspect.isfunction):
            inherited = f.__module__.partition(".")[0] != __name__.partition(".")[0]
            if inherited or (name.startswith("_") and name != "__call__"):
                continue
            told = _telling(f, called if name == "__call__" else f"{called}.{name}", {})
            static = isinstance(inspect.getattr_static(cls, name), staticmethod)
            setattr(cls, name, staticmethod(told) if static else told)
        return cls

    return decorate


def _telling(f: Any, called: str, meant: Mapping[str, str]) -> Any:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest shows the lines around it
        try:
            return f(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:
                raise  # it comes from inside
        raise _refused(f, called, meant, args, kwargs)

    return call


def _refused(
    f: Any, called: str, meant: Mapping[str, str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ArgumentError:
    """What is wrong with a call that Python refused."""
    takes = list(inspect.signature(f).parameters.values())
    if takes and takes[0].name == "self":
        takes, args = takes[1:], args[1:]
    given = takes, called, meant, args, kwargs
    what, remedy = _unknown(*given) or _count(*given)
    return ArgumentError(explain_error(what, where=called, rule=_rule(takes), remedy=remedy))


def _unknown(
    takes: Sequence[Kind],
    called: str,
    meant: Mapping[str, str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[str, str] | None:
    names = [one.name for one in takes if one.kind in (Kind.POSITIONAL_OR_KEYWORD, ONLY)]
    unknown = [name for name in kwargs if name not in names]
    if not unknown:
        return None
    first = unknown[0]
    placed = {one.name for one in takes[: len(args)] if one.kind in BY_POSITION}
    free = [name for name in names if name not in placed]
    others = {alias: name for name in free for alias in (name, name.replace("_", ""))}
    near = difflib.get_close_matches(first.lower(), others, n=1)
    if first in meant:
        remedy = meant[first]
    elif near:
        remedy = f"did you mean {others[near[0]]}=?"
    elif any(one.kind is Kind.VAR_POSITIONAL for one in takes):
        remedy = (
            f"what the function itself takes by name is bound to it before: "
            f"{called}(functools.partial(f, {first}=...), ...)"
        )
    else:
        remedy = f"leave it out: {_example(takes, called)}"
    return f"there is no argument {', '.join(f'{name}=' for name in unknown)}", remedy


def _count(
    takes: Sequence[Kind],
    called: str,
    meant: Mapping[str, str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[str, str]:
    positional = [one for one in takes if one.kind in BY_POSITION]
    twice = [one.name for one in positional[: len(args)] if one.name in kwargs]
    if twice:
        return f"{twice[0]} is given twice, by position and by name", f"give {twice[0]} once."
    missing = [
        one.name
        for one in [*positional[len(args) :], *(one for one in takes if one.kind is ONLY)]
        if one.default is Kind.empty and one.name not in kwargs
    ]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        return f"{', '.join(missing)} {verb} missing", _example(takes, called)
    given = f"{len(args)} argument{'s' * (len(args) != 1)} by position"
    return f"it is given {given}", meant.get("more") or _example(takes, called)


ONLY = Kind.KEYWORD_ONLY
BY_POSITION = (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD)


def _rule(takes: Sequence[Kind]) -> str:
    """What there is to give."""
    positional = [one.name for one in takes if one.kind in BY_POSITION]
    rest = next((one.name for one in takes if one.kind is Kind.VAR_POSITIONAL), "")
    positional += [f"*{rest}"] * bool(rest)
    named = [f"{one.name}=" for one in takes if one.kind is ONLY]
    parts = [", ".join(positional)] * bool(positional)
    parts += [f"by name {', '.join(named)}"] * bool(named)
    return f"It takes {'; '.join(parts) or 'no arguments'}."


def _example(takes: Sequence[Kind], called: str) -> str:
    """The shortest right call."""
    words = [one.name for one in takes if one.kind in BY_POSITION and one.default is Kind.empty]
    words += [f"*{one.name}" for one in takes if one.kind is Kind.VAR_POSITIONAL]
    words += [f"{one.name}=..." for one in takes if one.kind is ONLY and one.default is Kind.empty]
    words += ["mesh=mesh"] * any(one.kind is Kind.VAR_POSITIONAL for one in takes)
    return f"{called}({', '.join(words)})"


def called_wrongly(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
    given: str = "",
    rule: str = "The function is called with the arguments that follow it.",
    remedy: str = "",
) -> ArgumentError | None:
    """What to say where an error means that the user's function does not take these arguments.

    Nothing where it means something else: a call inside that function, say. `given` are the
    arguments in words, `rule` is who gives them, `remedy` what is done about it elsewhere.
    """
    if not isinstance(error, TypeError) or not _REFUSED.search(text_of(error)):
        return None
    refusal = binds(f, args, kwargs)
    if not refusal:
        return None
    name = name_of(f)
    packed = len(args) == 1 and isinstance(args[0], tuple | list)
    takes = inspect.signature(f)
    if packed and not binds(f, args[0], kwargs):
        kind, names = type(args[0]).__name__, ", ".join(takes.parameters)
        remedy = f"give them one after the other, not as one {kind}: {names}"
    remedy = remedy or f"give it what it takes: {name}{takes}"
    named = (f"{key}=" for key in kwargs if key != "mesh")  # which the call itself may have given
    given = given or ", ".join([*map(a_type, args), *named]) or "nothing"
    return ArgumentError(
        explain_error(
            f"it is called with {given}: {refusal}",
            where=f"{name}()",
            rule=rule,
            remedy=remedy,
        )
    )


def note_packed(error: Exception, args: Sequence[Any]) -> None:
    """Say beside the user's own error that the arguments came as one tuple, if that may be why."""
    if not isinstance(error, AttributeError | TypeError) or len(args) != 1:
        return
    kind = type(args[0])
    if kind in (tuple, list) and re.search(rf"\b{kind.__name__}\b", text_of(error)):
        note(
            error,
            f"shardwise: the function was called with one argument, a {kind.__name__} of "
            f"{len(args[0])}. Arguments follow it one after the other: f, a, b and not f, (a, b).",
        )


def binds(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> str:
    """Why a function cannot be called with these arguments; nothing where it can, or none knows."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        return str(error)
    return ""


_REFUSED = re.compile(
    r"missing (\d+|a) required|takes .* positional argument|unexpected keyword argument"
    r"|multiple values for|too many positional"
)
"""How Python, `inspect` and `jax.jit` refuse a call."""

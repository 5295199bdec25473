"""Static arguments: bound to a function before it is traced.

As in `jax.jit`, static arguments are named by number or by name. Meshes are static by themselves.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex

from .._base.calls import NAMED, parameter_names, parameters_of
from .._base.errors import ArgumentError, a_type, did_you_mean
from .._mesh import AbstractMesh, Mesh


@dataclasses.dataclass(frozen=True)
class Static:
    """Which arguments of a function are static."""

    argnums: tuple[int, ...] = ()
    argnames: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
    ) -> Static:
        """Convert the arguments of `jax.jit`: one or several, or None."""
        numbers = map(operator.index, _several(argnums, SupportsIndex, "static_argnums"))
        return cls(tuple(numbers), _several(argnames, str, "static_argnames"))

    def taken_by(self, f: Callable[..., Any]) -> Static:
        """Return the same for another function, which may have other parameters."""
        accepted = _keywords(f)
        names = tuple(name for name in self.argnames if accepted is None or name in accepted)
        return dataclasses.replace(self, argnames=names)


def _several(value: Any, kind: type, option: str) -> tuple[Any, ...]:
    """Return the entries of an option: one or several of a type, or none."""
    if value is None:
        return ()
    try:
        entries = (value,) if isinstance(value, str) else tuple(value)
    except TypeError:
        entries = (value,)
    for entry in entries:
        if not isinstance(entry, kind):
            raise ArgumentError(
                f"{entry!r} is of type {type(entry).__name__}",
                where=option,
                rule="static_argnums are numbers of positional arguments, static_argnames names "
                "of arguments.",
                remedy='static_argnums=(1,) or static_argnames=("heads",)',
            )
    return entries


@dataclasses.dataclass(frozen=True)
class Bound:
    """A function of arrays alone, and the arrays."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: Any
    """The static arguments, as part of the key of a traced program."""
    places: tuple[int, ...]
    """The indices of the remaining positional arguments."""
    count: int
    """The number of positional arguments of the call."""


def bind(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], static: Static
) -> Bound:
    """Bind the static arguments, so that only arrays are left."""
    names = parameter_names(f)
    _check_names(f, static)
    numbers = _numbers(f, static, names, len(args))
    fixed = {i: a for i, a in enumerate(args) if i in numbers or _is_mesh(a)}
    static_names = {*static.argnames, *(names[i] for i in numbers if i < len(names))}
    static_kwargs = {k: v for k, v in kwargs.items() if k in static_names or _is_mesh(v)}
    # 1, 1.0 and True are equal, but their programs differ.
    key = tuple(
        (label, type(value), value)
        for label, value in (*fixed.items(), *sorted(static_kwargs.items()))
    )
    for name, value in [*((_name(i, names), v) for i, v in fixed.items()), *static_kwargs.items()]:
        _check_hashable(name, value)
    positions = tuple(i for i in range(len(args)) if i not in fixed)
    rest = {k: v for k, v in kwargs.items() if k not in static_kwargs}
    if not fixed and not static_kwargs:
        return Bound(f, args, rest, (), positions, len(args))

    def bound(*arrays: Any, **more: Any) -> Any:
        values = iter(arrays)
        all_args = [fixed[i] if i in fixed else next(values) for i in range(len(args))]
        return f(*all_args, **more, **static_kwargs)

    positional = inspect.Parameter.POSITIONAL_ONLY
    bound.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [inspect.Parameter(names[i], positional) for i in positions if i < len(names)]
    )
    return Bound(bound, tuple(args[i] for i in positions), rest, key, positions, len(args))


def _numbers(f: Callable[..., Any], static: Static, names: list[str], count: int) -> set[int]:
    """Return the static ones among this many positional arguments."""
    numbers = {names.index(name) for name in static.argnames if name in names}
    is_open = _is_open(f)
    most = count if is_open else max(count, len(names))
    for number in static.argnums:
        index = number + most if number < 0 else number
        if 0 <= index < most:
            numbers.add(index)
        elif not is_open:  # with *args, another call may have that argument
            raise ArgumentError(
                f"static_argnums has {number}, and the function has "
                f"{most} positional argument{'s' * (most != 1)}",
                where="static_argnums",
                rule="A static argument is one of those that the function takes.",
                remedy="count from 0, or name it with static_argnames.",
            )
    return numbers


def _is_open(f: Callable[..., Any]) -> bool:
    """Return whether a function takes any number of positional arguments, or is unknown."""
    takes = parameters_of(f)
    return takes is None or any(p.kind is p.VAR_POSITIONAL for p in takes)


def _keywords(f: Callable[..., Any]) -> list[str] | None:
    """Return the keywords that a function takes; None for any, or if unknown."""
    takes = parameters_of(f)
    if takes is None or any(p.kind is p.VAR_KEYWORD for p in takes):
        return None
    return [p.name for p in takes if p.kind in NAMED]


def _check_names(f: Callable[..., Any], static: Static) -> None:
    """Raise for a name that the function does not take, as `jax.jit` does."""
    names = _keywords(f) if static.argnames else None
    unknown = [name for name in static.argnames if names is not None and name not in names]
    if not unknown or names is None:
        return
    raise ArgumentError(
        f"static_argnames has {unknown[0]!r}, and the function takes "
        + (", ".join(names) if names else "nothing by name"),
        where="static_argnames",
        rule="A static argument is one of those that the function takes.",
        remedy=did_you_mean(unknown[0], names) or "leave it out, or correct the name.",
    )


def _name(index: int, names: list[str]) -> str:
    return names[index] if index < len(names) else f"args[{index}]"


def _is_mesh(value: Any) -> bool:
    return isinstance(value, Mesh | AbstractMesh)


def _check_hashable(name: str, value: Any) -> None:
    try:
        hash(value)
    except TypeError as error:
        raise ArgumentError(
            f"{name} is {a_type(value)}, which cannot be hashed",
            where="a static argument",
            rule="A program is traced once for each value of its static arguments, so they "
            "are compared and hashed.",
            remedy="pass a tuple or a frozen dataclass, or bind it: "
            f"functools.partial(f, {name}=...).",
        ) from error

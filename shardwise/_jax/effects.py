"""Effects of programs, and exceptions of shardwise raised in compiled programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax._src import effects as _effects


def without_axes(effects: Any) -> set[Any]:
    """Return effects as seen outside a mesh."""
    return {effect for effect in effects if type(effect).__name__ != "NamedAxisEffect"}


class MayDeadlock(_effects.Effect):
    """The effect of a program that may detect a deadlock: it must run, and may raise."""

    def __repr__(self) -> str:
        return "MayDeadlock"


MAY_DEADLOCK = MayDeadlock()

for _allowed in (
    _effects.lowerable_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
):
    _allowed.add_type(MayDeadlock)


def surface(error: type[Exception], recognise: Callable[[str], Exception | None]) -> None:
    """Make `error`, raised by a callback inside a compiled program, reach the caller unchanged.

    XLA converts any exception of a callback into a `JaxRuntimeError` with its text. From the first
    call on, a `JaxRuntimeError` whose text `recognise` matches becomes an instance of both classes.
    This patch is not removed: the error is raised when a compiled program runs, long after it was
    traced, in the caller's `jit`, without shardwise on the stack. Should a later JAX build its
    errors differently, the caller gets the plain `JaxRuntimeError`, with the same text.
    """
    base = jax.errors.JaxRuntimeError
    if error in _SURFACED:
        return
    init = base.__init__

    class Surfaced(base, error):  # in this order the memory layouts agree
        def __str__(self) -> str:
            return str(self.original)

    Surfaced.__name__ = Surfaced.__qualname__ = error.__name__
    Surfaced.__module__ = error.__module__

    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        original = recognise(str(args[0])) if args and type(self) is base else None
        if original is not None:
            with contextlib.suppress(TypeError):
                self.__class__ = Surfaced
                self.original = original

    base.__init__ = patched
    _SURFACED.add(error)


_SURFACED: set[type[Exception]] = set()

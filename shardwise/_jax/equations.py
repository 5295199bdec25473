"""Operations that are exactly one equation of JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import core as _core

from .jaxprs import bind


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """A callable that applies a primitive, and does nothing else."""

    primitive: Any
    params: dict[str, Any]

    def __call__(self, *args: Any) -> list[Any]:
        """Apply it."""
        return bind(self.primitive, self.params, *args)


def applying(primitive: Any, params: dict[str, Any], effects: Any) -> Callable[..., list[Any]]:
    """Return a function that applies a primitive as its equation would."""
    primitive = getattr(primitive, "prim", primitive)
    plain = type(primitive).get_bind_params is _core.Primitive.get_bind_params
    # JAX rewrites some primitives to others when they are applied.
    lowered = getattr(primitive.is_high, "__func__", None) is _core.Primitive.is_high
    if plain and lowered and not effects:
        return Equation(primitive, params)
    return partial(bind, primitive, params)

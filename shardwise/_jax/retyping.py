"""Evaluate programs in other dtypes: jaxprs traced again, and dtype ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex
from jax.interpreters import batching, mlir

from .equations import Equation
from .jaxprs import bind, open_jaxpr, primitive_name

Params = Callable[[str, dict[str, Any]], dict[str, Any]]
Called = Callable[[str], str]
"""Returns the parameter of a call that contains its jaxpr, by the name of its primitive."""


def retyped(jaxpr: Any, aval: Callable[[Any], Any], params: Params, called: Called) -> Any:
    """Trace the body of a scatter or a reduction again, for operands of other types."""
    avals = [aval(v.aval) for v in open_jaxpr(jaxpr).invars]
    with jax.enable_x64(True):
        retraced = jax.make_jaxpr(functools.partial(_evaluate, jaxpr, aval, params, called))(*avals)
    return retraced if hasattr(jaxpr, "consts") else retraced.jaxpr


def _evaluate(
    jaxpr: Any, aval: Callable[[Any], Any], params: Params, called: Called, *args: Any
) -> list[Any]:
    opened = open_jaxpr(jaxpr)
    env: dict[Any, Any] = dict(zip(opened.constvars, opened.consts, strict=True))
    env.update(zip(opened.invars, args, strict=True))

    def read(v: Any) -> Any:
        if not isinstance(v, jex.Literal):
            return env[v]
        return np.asarray(v.val).astype(aval(v.aval).dtype)

    for eqn in opened.eqns:
        name = primitive_name(eqn.primitive)
        operands = [read(v) for v in eqn.invars]
        if called(name) in eqn.params:
            inner = eqn.params[called(name)]
            outs: Sequence[Any] = _evaluate(inner, aval, params, called, *operands)
        else:
            outs = bind(eqn.primitive, params(name, eqn.params), *operands)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(v) for v in opened.outvars]


def within_range(limit: float, beyond: float) -> Equation:
    """Return the equation that replaces values of at least `limit` by `beyond`."""
    return Equation(in_range_p, {"limit": limit, "beyond": beyond})


def _in_range(x: Any, *, limit: float, beyond: float) -> Any:
    bound = np.asarray(beyond, x.dtype)
    signed = lax.full(x.shape, bound) if np.isnan(beyond) else lax.sign(x) * bound
    return lax.select(lax.abs(x) >= np.asarray(limit, x.dtype), signed, x)


def _batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
    return in_range_p.bind(*args, **params), dims[0]


in_range_p = jex.Primitive("shardwise_in_range")
in_range_p.def_impl(_in_range)
in_range_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(in_range_p, mlir.lower_fun(_in_range, multiple_results=False))
batching.primitive_batchers[in_range_p] = _batch

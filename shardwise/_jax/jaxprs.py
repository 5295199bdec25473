"""Jaxprs, whichever classes this version of JAX uses: opened, evaluated, looked through."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _partial
from jax._src.lax import lax as _lax
from jax.core import Tracer, eval_jaxpr
from jax.extend import core as jex
from jax.sharding import SingleDeviceSharding


@dataclasses.dataclass(frozen=True)
class Open:
    """A jaxpr with its constants beside it, whichever class this version of JAX uses."""

    constvars: Sequence[Any]
    consts: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]
    effects: Any


outside_traces = _core.eval_context
"""A context in which programs run, whatever is being traced around them."""


def open_jaxpr(jaxpr: Any) -> Open:
    """Open a `ClosedJaxpr` or `Jaxpr`; since JAX 0.12 the two are one class."""
    consts = getattr(jaxpr, "consts", ())
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return Open(
        inner.constvars, consts, inner.invars, inner.eqns, inner.outvars, frozenset(inner.effects)
    )


def inputs(jaxpr: Any) -> list[Any]:
    """The variables that a program is called with: its constants, then its arguments."""
    opened = open_jaxpr(jaxpr)
    return [*opened.constvars, *opened.invars]


def as_compiled(jaxpr: Any) -> tuple[list[Any], Open]:
    """What a program is called with, constants first; and its equations as JAX compiles them.

    Some primitives are made of others before JAX compiles them (`searchsorted`, `custom_root`).
    They hold what they were traced with, so they cannot be applied outside the `shard_map` that
    they stand in. JAX takes them apart where they stand. Constants that this makes are `consts`.
    """
    opened = open_jaxpr(jaxpr)
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if not inner.is_high:
        return inputs(jaxpr), dataclasses.replace(opened, constvars=(), consts=())
    called = _partial.convert_constvars_jaxpr(inner)
    low = open_jaxpr(_partial.lower_jaxpr2(jex.ClosedJaxpr(called, ())))
    return list(low.invars), low


def without_dead(jaxpr: Any) -> Any:
    """A closed jaxpr with the same inputs, and without what nothing comes of."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    fewer, _ = _partial.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    return jex.ClosedJaxpr(getattr(fewer, "jaxpr", fewer), jaxpr.consts)


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr with other constants than those it was traced with."""
    return eval_jaxpr(jaxpr.jaxpr, consts, *args)


def is_traced(x: Any) -> bool:
    """Whether a value belongs to a trace that is under way."""
    return isinstance(x, Tracer)


def refuse_leaked(values: Iterable[Any]) -> None:
    """Raise JAX's error about a value that was kept from a trace that is over, if there is one.

    Where it cannot be known which traces are under way, that is left to JAX.
    """
    under_way = []
    trace = _core.trace_ctx.trace
    while trace is not None and not isinstance(trace, _core.EvalTrace):
        under_way.append(trace)
        trace = getattr(trace, "parent_trace", None)
    if trace is not None:
        traced = [x for x in values if is_traced(x)]
        _core.check_eval_args([x for x in traced if not any(x._trace is t for t in under_way)])


def is_key(dtype: Any) -> bool:
    """Whether a type is one of random keys."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(dtype: Any) -> Any:
    """The generator behind a type of random keys, as `jax.random.key` takes it."""
    return dtype._impl.name


def is_unknown(x: Any) -> bool:
    """Whether a tangent is one that JAX takes a linear program for, to run or transpose later."""
    return isinstance(x, _partial.JaxprTracer)


def untouched(outs: Sequence[Any]) -> dict[int, Any]:
    """Results inside a `vmap` that are the same for its whole batch, as they are outside it."""
    found = {}
    for index, x in enumerate(outs):
        if not isinstance(x, _batching.BatchTracer):
            found[index] = x
        elif x.batch_dim is None:
            found[index] = x.val
    return found


def trace_context() -> Any:
    """What besides the arguments decides how a function is traced (x64, precision, ...)."""
    return _config.trace_context()


def on_one_device(eqn: Any) -> bool:
    """Whether an equation that places a value puts it on a device of its own."""
    named = eqn.params.get("devices") or (eqn.params.get("sharding"),)
    return any(isinstance(one, SingleDeviceSharding) for one in named)


def primitive_name(primitive: Any) -> str:
    """The name; JAX wraps a primitive met in a vector-Jacobian product in a node of its own."""
    return getattr(primitive, "prim", primitive).name


def bind(primitive: Any, params: dict[str, Any], *args: Any) -> list[Any]:
    """Apply a primitive as its equation would, and give a list of results."""
    primitive = getattr(primitive, "prim", primitive)
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def can_batch(primitive: Any) -> bool:
    """Whether JAX knows how to apply a primitive to several at once."""
    return primitive in _batching.fancy_primitive_batchers


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation holds a jaxpr."""
    return isinstance(value, jex.Jaxpr | jex.ClosedJaxpr)


def constants(jaxpr: Any) -> list[Any]:
    """The constants of a jaxpr and of every jaxpr inside it, in the order of the equations."""
    opened = open_jaxpr(jaxpr)
    found = list(opened.consts)
    for eqn in opened.eqns:
        values = [*eqn.params.values(), *eqn.invars]
        while values:
            value = values.pop(0)
            if is_jaxpr(value):
                found += constants(value)
            elif isinstance(value, tuple | list):
                values = [*value, *values]
            elif isinstance(value, jex.Literal):
                found.append(value.val)
    return found


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """How many constants and how many carried values a `scan` equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


def untyped(constant: Any) -> Any:
    """A constant without the mesh around the place where it was made.

    A tangent of whole numbers (`float0`), which has no values, is false everywhere: numbers that
    can be passed on.
    """
    if getattr(constant, "dtype", None) == jax.dtypes.float0:
        return np.zeros(constant.shape, np.bool_)
    return np.asarray(constant) if type(constant).__name__ == "TypedNdArray" else constant


def specs_in(jaxpr: Any) -> list[Any]:
    """The specs of the arguments of all `shard_map`s, in order."""
    found = []
    for eqn in open_jaxpr(jaxpr).eqns:
        if primitive_name(eqn.primitive) == "shard_map":
            found.append(eqn.params["in_specs"])
        values = list(eqn.params.values())
        for value in values:
            if is_jaxpr(value):
                found += specs_in(value)
            elif isinstance(value, tuple | list):
                values += value
    return found


def is_ordered(effect: Any) -> bool:
    """Whether an effect asks for an order among devices, which a simulation cannot give."""
    return "ordered" in type(effect).__name__.lower() or "ordered" in str(effect).lower()


def named_axes(effects: Any) -> set[Any]:
    """The axis names among the effects: how most collectives show themselves."""
    return {effect.name for effect in effects if type(effect).__name__ == "NamedAxisEffect"}


PERMUTES_IN_MESH_ORDER = not hasattr(_config, "raise_on_ppermute_sort_diff")
"""Up to JAX 0.11, `ppermute` over several axes numbers devices in mesh order, as given or not."""


def permutes_as_given() -> bool:
    """Whether `ppermute` takes its axes in any order, as newer JAX does when told to."""
    refuses = getattr(_config, "raise_on_ppermute_sort_diff", None)
    return refuses is not None and not refuses.value


def argument_names(jaxpr: Any) -> list[str]:
    """What the function that a jaxpr was traced from calls its arguments; "" where unknown."""
    count = len(open_jaxpr(jaxpr).invars)
    known = getattr(getattr(jaxpr, "debug_info", None), "arg_names", ()) or ()
    # What a body closes over comes in front of its own arguments, without a name.
    return [*[""] * count, *(str(name or "") for name in known)][-count:] if count else []


def shape_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a value's type."""
    return tuple(aval.shape), aval.dtype


def cast(x: Any, aval: Any) -> Any:
    """An array with the dtype and the weakness of a type."""
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        return x
    return _lax._convert_element_type(x, aval.dtype, weak_type=aval.weak_type)

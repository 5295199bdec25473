"""Read and evaluate jaxprs, whichever classes this version of JAX uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
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
    """A jaxpr and its constants, whichever class this version of JAX uses."""

    constvars: Sequence[Any]
    consts: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]
    effects: Any


outside_traces = _core.eval_context
"""A context in which programs run, even if something is being traced around them."""


def open_jaxpr(jaxpr: Any) -> Open:
    """Open a `ClosedJaxpr` or `Jaxpr`; since JAX 0.12 the two are one class."""
    consts = getattr(jaxpr, "consts", ())
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return Open(
        inner.constvars, consts, inner.invars, inner.eqns, inner.outvars, frozenset(inner.effects)
    )


def inputs(jaxpr: Any) -> list[Any]:
    """Return the input variables of a program: its constants, then its arguments."""
    opened = open_jaxpr(jaxpr)
    return [*opened.constvars, *opened.invars]


def as_compiled(jaxpr: Any) -> tuple[list[Any], Open]:
    """Return the inputs of a program, constants first, and its equations as JAX compiles them.

    Some primitives are lowered to others before JAX compiles them (`searchsorted`, `custom_root`).
    They contain what they were traced with, so they cannot be applied outside their `shard_map`.
    JAX lowers them in place. Constants created by this are `consts`.
    """
    opened = open_jaxpr(jaxpr)
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    if not inner.is_high:
        return inputs(jaxpr), dataclasses.replace(opened, constvars=(), consts=())
    converted = _partial.convert_constvars_jaxpr(inner)
    low = open_jaxpr(_partial.lower_jaxpr2(jex.ClosedJaxpr(converted, ())))
    return list(low.invars), low


def without_dead(jaxpr: Any) -> Any:
    """Return a closed jaxpr with the same inputs, and without unused operations."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    fewer, _ = _partial.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    return jex.ClosedJaxpr(getattr(fewer, "jaxpr", fewer), jaxpr.consts)


def evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr with other constants than those it was traced with."""
    return eval_jaxpr(jaxpr.jaxpr, consts, *args)


def is_traced(x: Any) -> bool:
    """Return whether a value belongs to a running trace."""
    return isinstance(x, Tracer)


def refuse_leaked(values: Iterable[Any]) -> None:
    """Raise JAX's error about a value of a finished trace, if there is one.

    If it is unknown which traces are running, this is left to JAX.
    """
    active_traces = []
    trace = _core.trace_ctx.trace
    while trace is not None and not isinstance(trace, _core.EvalTrace):
        active_traces.append(trace)
        trace = getattr(trace, "parent_trace", None)
    if trace is not None:
        traced = [x for x in values if is_traced(x)]
        _core.check_eval_args([x for x in traced if not any(x._trace is t for t in active_traces)])


def is_key(dtype: Any) -> bool:
    """Return whether a dtype is one of random keys."""
    return jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)


def key_impl(dtype: Any) -> Any:
    """Return the generator of a dtype of random keys, as `jax.random.key` takes it."""
    return dtype._impl.name


def is_unknown(x: Any) -> bool:
    """Return whether a tangent belongs to a linearization, to be run or transposed later."""
    return isinstance(x, _partial.JaxprTracer)


def untouched(outs: Sequence[Any]) -> dict[int, Any]:
    """Return the results inside a `vmap` that are the same for its whole batch, as outside it."""
    results = {}
    for index, x in enumerate(outs):
        if not isinstance(x, _batching.BatchTracer):
            results[index] = x
        elif x.batch_dim is None:
            results[index] = x.val
    return results


def trace_context() -> Any:
    """Return the settings that affect how a function is traced (x64, precision, ...)."""
    return _config.trace_context()


def on_one_device(eqn: Any) -> bool:
    """Return whether an equation that places a value puts it on a single device."""
    shardings = eqn.params.get("devices") or (eqn.params.get("sharding"),)
    return any(isinstance(sharding, SingleDeviceSharding) for sharding in shardings)


def primitive_name(primitive: Any) -> str:
    """Return the name; JAX wraps a primitive inside a vector-Jacobian product."""
    return getattr(primitive, "prim", primitive).name


def bind(primitive: Any, params: dict[str, Any], *args: Any) -> list[Any]:
    """Apply a primitive as its equation would, and return a list of results."""
    primitive = getattr(primitive, "prim", primitive)
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


def can_batch(primitive: Any) -> bool:
    """Return whether JAX has a batching rule for a primitive."""
    return primitive in _batching.fancy_primitive_batchers


def is_jaxpr(value: Any) -> bool:
    """Return whether a parameter of an equation contains a jaxpr."""
    return isinstance(value, jex.Jaxpr | jex.ClosedJaxpr)


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    values = list(eqn.params.values())
    for value in values:
        if is_jaxpr(value):
            yield value
        elif isinstance(value, tuple | list):
            values += value


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of every jaxpr inside it, in order."""
    for eqn in open_jaxpr(jaxpr).eqns:
        yield eqn
        for inner in inner_jaxprs(eqn):
            yield from equations(inner)


def constants(jaxpr: Any) -> list[Any]:
    """Return the constants of a jaxpr and of every jaxpr inside it, in the order of the
    equations."""
    opened = open_jaxpr(jaxpr)
    result = list(opened.consts)
    for eqn in opened.eqns:
        result += [constant for inner in inner_jaxprs(eqn) for constant in constants(inner)]
        result += [atom.val for atom in eqn.invars if isinstance(atom, jex.Literal)]
    return result


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many constants and how many carried values a `scan` equation has."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(list(consts)), len(list(carry))


def untyped(constant: Any) -> Any:
    """Return a constant without the mesh of the place where it was created.

    A tangent of integers (`float0`), which has no values, becomes false everywhere.
    """
    if getattr(constant, "dtype", None) == jax.dtypes.float0:
        return np.zeros(constant.shape, np.bool_)
    return np.asarray(constant) if type(constant).__name__ == "TypedNdArray" else constant


def shard_maps_in(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of all `shard_map`s, in order."""
    return (eqn for eqn in equations(jaxpr) if primitive_name(eqn.primitive) == "shard_map")


def specs_in(jaxpr: Any) -> list[Any]:
    """Return the specs of the arguments of all `shard_map`s, in order."""
    return [eqn.params["in_specs"] for eqn in shard_maps_in(jaxpr)]


def is_ordered(effect: Any) -> bool:
    """Return whether an effect requires an order among devices, which cannot be simulated."""
    return "ordered" in type(effect).__name__.lower() or "ordered" in str(effect).lower()


def named_axes(effects: Any) -> set[Any]:
    """Return the axis names among the effects, by which most collectives can be recognised."""
    return {effect.name for effect in effects if type(effect).__name__ == "NamedAxisEffect"}


PERMUTES_IN_MESH_ORDER = not hasattr(_config, "raise_on_ppermute_sort_diff")
"""Up to JAX 0.11, `ppermute` over several axes always numbers devices in mesh order."""


def permutes_as_given() -> bool:
    """Return whether `ppermute` takes its axes in any order, an option of newer JAX."""
    refuses = getattr(_config, "raise_on_ppermute_sort_diff", None)
    return refuses is not None and not refuses.value


def argument_names(jaxpr: Any) -> list[str]:
    """Return the parameter names of the function that a jaxpr was traced from; "" if unknown."""
    count = len(open_jaxpr(jaxpr).invars)
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", ()) or ()
    # Values that a body closes over precede its arguments, and have no name.
    return [*[""] * count, *(str(name or "") for name in names)][-count:] if count else []


def shape_of(aval: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and dtype of a type."""
    return tuple(aval.shape), aval.dtype


def cast(x: Any, aval: Any) -> Any:
    """Return an array with the dtype and weak type of a type."""
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        return x
    return _lax._convert_element_type(x, aval.dtype, weak_type=aval.weak_type)

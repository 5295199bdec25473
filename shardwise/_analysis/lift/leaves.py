"""Single operations in float64: with wider parameters, or run in their declared dtypes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax
from ..._program import Atom, Leaf, Op, Var, like, primitives
from .widths import FLOAT, as_declared, is_wider, wide_dtype

DECLARED = primitives.names(lambda p: p.fixed_dtype and p.name != "reduce_precision")
"""Operations that depend on the bits of their operands, or are compiled for their dtypes."""

_TAKE_ANY = {"pointwise", "moves", "makes", "reduces", "scans", "scatters", "contracts", "searches"}
KNOWN = primitives.names(lambda p: (p.acts in _TAKE_ANY or p.identity) and not p.series)
"""Operations known to accept float64; others are traced by JAX to find out."""


def retyped(atom: Atom, dtype: Any) -> Var:
    """Return a new value of another dtype that differs over the same axes."""
    new = like(atom)
    new.dtype, new.axes = dtype, atom.axes
    return new


def beside(op: Op, operand: Atom, out: Var, name: str, run: Callable[..., list[Any]]) -> Leaf:
    """Return an operation on one value, at the place of another operation."""
    params = run.params if isinstance(run, _jax.Equation) else {}
    return Leaf(
        [operand], [out], name, run, params,
        scope=op.scope, source=op.source, calls=op.calls, flow=op.flow, needs=operand.axes,
    )  # fmt: skip


def lifted_leaf(op: Leaf, ins: list[Atom], outs: list[Var]) -> Leaf:
    """Return an operation on wide values."""
    if not any(is_wider(dtype) for dtype in _dtypes(op)):
        return dataclasses.replace(op, ins=ins, outs=outs)
    if runs_declared(op):
        run: Callable[..., list[Any]] = functools.partial(
            _declared, op.run, [_dtype(atom) for atom in op.ins]
        )
        return dataclasses.replace(op, ins=ins, outs=outs, run=run)
    if op.name == "reduce_precision":
        return dataclasses.replace(op, name="copy", ins=ins, outs=outs, run=as_float, params={})
    primitive, params = bound(op)
    if primitive is None:  # an operation that is no primitive, such as a barrier
        return dataclasses.replace(op, ins=ins, outs=outs)
    params = wide_params(op.name, params)
    run = _jax.applying(primitive, params, op.effect)
    return dataclasses.replace(op, ins=ins, outs=outs, run=run, params=params)


def runs_declared(op: Leaf) -> bool:
    """Return whether an operation runs in its declared dtypes."""
    if op.name in DECLARED:
        return any(is_wider(dtype) for dtype in _dtypes(op))
    if op.name in KNOWN or not any(is_wider(dtype) for dtype in _dtypes(op)):
        return False
    primitive, _ = bound(op)
    return primitive is not None and not _takes_wide(op)


def wide_params(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an operation with wide dtypes, and wide bodies."""
    wide = {}
    for key, value in params.items():
        if key in primitives.DTYPE_PARAMS and value is not None and not isinstance(value, str):
            value = wide_dtype(value)
        elif key == "precision" and primitives.of(name).acts == "contracts":
            value = None  # it may contain the dtypes of the operands
        elif _jax.is_jaxpr(value):
            value = _jax.retyped(value, wide_aval, wide_params, _body)
        wide[key] = value
    return wide


def _body(name: str) -> str:
    return primitives.of(name).body


def wide_aval(aval: Any) -> Any:
    """Return a type with the wide dtype."""
    return jax.ShapeDtypeStruct(aval.shape, wide_dtype(aval.dtype))


def _takes_wide(op: Leaf) -> bool:
    """Return whether an operation can be traced with wide operands, and gives wide results."""
    primitive, params = bound(op)
    operands = [jax.ShapeDtypeStruct(np.shape(_value(a)), wide_dtype(_dtype(a))) for a in op.ins]
    try:
        with jax.enable_x64(True):
            run = functools.partial(_jax.bind, primitive, wide_params(op.name, params))
            outs = jax.eval_shape(run, *operands)
    except Exception:  # JAX raises various errors for unsupported dtypes
        return False
    return [out.dtype for out in outs] == [wide_dtype(var.dtype) for var in op.outs]


def bound(op: Leaf) -> tuple[Any, dict[str, Any]]:
    """Return the primitive that an operation applies, if it is one, and its parameters."""
    if isinstance(op.run, _jax.Equation):
        return op.run.primitive, op.run.params
    if isinstance(op.run, functools.partial) and op.run.func is _jax.bind:
        return op.run.args
    return None, {}


def _declared(run: Callable[..., list[Any]], dtypes: Sequence[Any], *xs: Any) -> list[Any]:
    outs = run(*(as_declared(x, dtype) for x, dtype in zip(xs, dtypes, strict=True)))
    return [lax.convert_element_type(x, wide_dtype(x.dtype)) if _is_wider(x) else x for x in outs]


def _is_wider(x: Any) -> bool:
    return not jnp.issubdtype(x.dtype, jax.dtypes.extended) and is_wider(x.dtype)


def as_float(x: Any) -> list[Any]:
    """Convert a value to float64."""
    return [lax.convert_element_type(x, FLOAT)]


def _dtypes(op: Leaf) -> list[Any]:
    return [*map(_dtype, op.ins), *(var.dtype for var in op.outs)]


def _dtype(atom: Atom) -> Any:
    return atom.dtype if isinstance(atom, Var) else jnp.result_type(atom.value)


def _value(atom: Atom) -> Any:
    return np.zeros(atom.shape) if isinstance(atom, Var) else atom.value

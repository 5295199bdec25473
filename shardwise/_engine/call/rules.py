"""A simulated program as one JAX primitive.

`simulate` traces a function once and binds `simulate_p` with the jaxpr, including its `shard_map`s.
Derivatives and batches of that call are JAX's own derivatives and batches *of the jaxpr*, bound
again: what is simulated is exactly what JAX would run on a real mesh. Only when a call is executed
or compiled does the engine lower it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from ... import _jax
from ..._base.errors import DeadlockError
from ..._jax import types
from ..._jax.primitive import Batch, CallRules, call_primitive
from ..._jax.virtual import under
from ..._program import RequestedAxes
from ..lower import Pace, explain_divergence
from .program import SimulatedProgram, derive

T = TypeVar("T")


def call(program: SimulatedProgram, pace: Pace, args: Sequence[Any]) -> list[Any]:
    """Run a program now, or stage it out if `args` are traced."""
    return simulate_p.bind(*types.with_equal_varying_axes(args), program=program, pace=pace)


# --- running


def _run(*args: Any, program: SimulatedProgram, pace: Pace) -> list[Any]:
    with under(None):  # a simulated program runs on no mesh
        outs, divergence = program.compiled(pace)(*map(types.unplaced, args))
    mesh = types.mesh_in_use(args)
    outs = [
        types.put_on_mesh(out, aval, mesh) for out, aval in zip(outs, program.avals, strict=True)
    ]
    if divergence is not None and int(divergence.site):
        raise explain_divergence(
            program.watch.sites, int(divergence.site), np.asarray(divergence.branches)
        )
    return outs


def _stage(*args: Any, program: SimulatedProgram, pace: Pace) -> list[Any]:
    arg_types = [jax.typeof(x) for x in args]
    with types.unchecked():  # an outer shard_map cannot check the program's values
        outs, divergence = program.run(tuple(map(types.replicated, args)), pace)
    avals = types.types_in_trace(program.avals, arg_types)
    outs = [types.resharded(out, aval) for out, aval in zip(outs, avals, strict=True)]
    if divergence is None:
        return outs
    _jax.surface(DeadlockError, _recognise)

    def check(site: Any, branches: Any) -> Any:
        if int(site):
            error = explain_divergence(program.watch.sites, int(site), np.asarray(branches))
            _RAISED.append(error)
            raise error
        return np.int32(0)

    checked = io_callback(check, jax.ShapeDtypeStruct((), jnp.int32), *divergence)
    # No result is available before the callback has run.
    *outs, _ = lax.optimization_barrier((*outs, checked))
    return list(outs)


_RAISED: collections.deque[Exception] = collections.deque(maxlen=16)
"""The latest errors raised by callbacks, to recognise them in XLA's error messages."""


def _recognise(text: str) -> Exception | None:
    return next((error for error in reversed(_RAISED) if str(error) in text), None)


def _abstract(*inputs: Any, program: SimulatedProgram, pace: Pace) -> tuple[list[Any], Any]:
    return types.types_in_trace(program.avals, inputs), program.effects


# --- transformations


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, program: SimulatedProgram, pace: Pace
) -> tuple[list[Any], list[Any]]:
    moving = tuple(t is not None for t in tangents)
    directions = [t for t in tangents if t is not None]
    differentiate = _jvp_in_two_calls if any(map(_jax.is_unknown, directions)) else _jvp_in_one_call
    results = differentiate(program, moving, pace, *primals, *directions)
    smooth = _differentiable(program)
    derivatives = iter(results[len(smooth) :])
    return results[: len(smooth)], [next(derivatives) if real else None for real in smooth]


def _jvp_in_one_call(
    program: SimulatedProgram, moving: tuple[bool, ...], pace: Pace, *args: Any
) -> list[Any]:
    """Compute a forward derivative in one call, which `_split` divides where necessary.

    JAX drops `custom_jvp` rules when it splits a loop, so a second forward derivative would not use
    them. So the call is split only if necessary.
    """
    smooth = _differentiable(program)

    def push(*args: Any) -> tuple[list[Any], list[Any]]:
        primals, directions = args[: len(moving)], args[len(moving) :]
        f = _with_fixed(program, moving, primals)
        outs, tangents = jax.jvp(f, tuple(_select(primals, moving)), tuple(directions))
        return outs, _select(tangents, smooth)

    derived, consts, _ = derive(
        program,
        ("jvp", moving),
        push,
        args,
        [*program.arguments, *_tangents(program, moving)],
        [*program.input_axes, *_select(program.input_axes, moving)],
        lambda _: [*program.result_axes, *_select(program.result_axes, smooth)],
    )
    derived.parts = lambda pace, *args: _jvp_in_two_calls(
        program, moving, pace, *args[len(consts) :]
    )
    return call(derived, pace, [*consts, *args])


def _split(*, program: SimulatedProgram, pace: Pace) -> Callable[..., list[Any]] | None:
    return None if program.parts is None else partial(program.parts, pace)


def _jvp_in_two_calls(
    program: SimulatedProgram, moving: tuple[bool, ...], pace: Pace, *args: Any
) -> list[Any]:
    """Compute a forward derivative in two calls; the first one can run before tangents are
    known."""
    smooth = _differentiable(program)
    count = len(smooth)
    primals, directions = args[: len(moving)], args[len(moving) :]
    derived, consts, tree = _forward(program, moving, primals)
    residual_axes = derived.result_axes[count:]
    results = call(derived, pace, [*consts, *primals])
    outs, residuals = results[:count], results[count:]

    def linear(*args: Any) -> list[Any]:
        residuals, directions = args[: len(residual_axes)], args[len(residual_axes) :]
        out = jax.tree.unflatten(tree, residuals)(*directions)
        return _select(out, smooth)

    derived, consts, _ = derive(
        program,
        ("linear", moving),
        linear,
        [*residuals, *directions],
        [*derived.results[count:], *_tangents(program, moving)],
        [*residual_axes, *_select(program.input_axes, moving)],
        lambda _: _select(program.result_axes, smooth),
    )
    return [*outs, *call(derived, pace, [*consts, *residuals, *directions])]


def _differentiable(program: SimulatedProgram) -> tuple[bool, ...]:
    return tuple(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in program.avals)


def _forward(
    program: SimulatedProgram, moving: tuple[bool, ...], primals: Sequence[Any]
) -> tuple[SimulatedProgram, list[Any], Any]:
    """Return the program that returns the results and then the residuals, and the residuals'
    tree."""
    tree: Any = None

    def forward(*primals: Any) -> tuple[list[Any], list[Any]]:
        nonlocal tree
        outs, linear = jax.linearize(
            _with_fixed(program, moving, primals), *_select(primals, moving)
        )
        residuals, tree = jax.tree.flatten(linear)
        return outs, residuals

    def requested(count: int) -> list[RequestedAxes]:
        extra: list[RequestedAxes] = ["every"] * (count - len(program.result_axes))
        return [*program.result_axes, *extra]

    name = ("forward", moving)
    avals = program.arguments
    return derive(
        program, name, forward, primals, avals, program.input_axes, requested, lambda: tree
    )


def _tangents(program: SimulatedProgram, moving: Sequence[bool]) -> list[Any]:
    """Return the types of tangents."""
    return [aval.to_tangent_aval() for aval in _select(program.arguments, moving)]


def _transpose(
    cotangents: Sequence[Any],
    args: Sequence[Any],
    avals: Sequence[Any],
    *,
    program: SimulatedProgram,
    pace: Pace,
) -> list[Any]:
    linear = tuple(aval is not None for aval in avals)
    constant = [not is_linear for is_linear in linear]
    constants = _select(args, constant)
    inputs = _select(program.arguments, linear)
    used = tuple(cotangent is not None for cotangent in cotangents)
    moving = _select(cotangents, used)

    def backward(*args: Any) -> Any:
        rest = iter(args[: len(constants)])
        fixed = [None if is_linear else next(rest) for is_linear in linear]
        whole = _with_fixed(program, linear, fixed)
        return types.transpose_linear(
            lambda *x: _select(whole(*x), used), inputs, args[len(constants) :]
        )

    derived, consts, _ = derive(
        program,
        ("transpose", linear, used),
        backward,
        [*constants, *moving],
        [
            *_select(program.arguments, constant),
            *(a.to_ct_aval() for a in _select(program.results, used)),
        ],
        [*_select(program.input_axes, constant), *_select(program.result_axes, used)],
        lambda _: _select(program.input_axes, linear),
    )
    outs = iter(call(derived, pace, [*consts, *constants, *moving]))
    return [next(outs) if is_linear else None for is_linear in linear]


def _with_fixed(
    program: SimulatedProgram, moving: Sequence[bool], fixed: Sequence[Any]
) -> Callable[..., Any]:
    """Return the program as a function of some arguments, with the others fixed."""

    def f(*values: Any) -> list[Any]:
        remaining = iter(values)
        return program.function(
            *[next(remaining) if m else arg for m, arg in zip(moving, fixed, strict=True)]
        )

    return f


def _vmap(
    axis: Batch, args: Sequence[Any], dims: Sequence[Any], *, program: SimulatedProgram, pace: Pace
) -> tuple[list[Any], list[Any]]:
    if all(dim is None for dim in dims) and axis.name not in program.outer_axes:
        return call(program, pace, args), [None] * len(program.result_axes)
    depths = [len(axes or ()) for axes in program.input_axes]
    args = [
        x if dim is None or not depth else jnp.moveaxis(x, dim, depth)
        for x, dim, depth in zip(args, dims, depths, strict=True)
    ]
    outer_dims = [
        dim if dim is None or not depth else depth for dim, depth in zip(dims, depths, strict=True)
    ]
    dims = tuple(
        dim if dim is None or not depth else 0 for dim, depth in zip(dims, depths, strict=True)
    )
    batches = map(types.unstacked, map(jax.typeof, args), depths)
    untouched: dict[int, Any] = {}

    def single(*args: Any) -> list[Any]:
        outs = program.function(*args)
        # Results that do not depend on the batch are not batched: JAX may be unable to.
        untouched.update(_jax.untouched(outs))
        return [out for i, out in enumerate(outs) if i not in untouched]

    def batched(*args: Any) -> list[Any]:
        rest = iter(jax.vmap(single, in_axes=dims, **axis.options)(*args))
        return [
            untouched[i] if i in untouched else next(rest) for i in range(len(program.result_axes))
        ]

    derived, consts, unbatched = derive(
        program,
        ("vmap", dims, axis),
        batched,
        args,
        list(map(types.batched, program.arguments, batches, dims)),
        program.input_axes,
        lambda _: program.result_axes,
        lambda: frozenset(untouched),
    )
    depths = [len(axes or ()) for axes in program.result_axes]
    if program.parts is not None:
        derived.parts = partial(
            _batch_parts, program.parts, len(consts), outer_dims, axis, depths, unbatched
        )
    outs = call(derived, pace, [*consts, *args])
    return outs, [None if i in unbatched else depth for i, depth in enumerate(depths)]


def _batch_parts(
    parts: Callable[..., list[Any]],
    consts: int,
    dims: Sequence[Any],
    axis: Batch,
    depths: Sequence[int],
    unbatched: frozenset[int],
    pace: Pace,
    *args: Any,
) -> list[Any]:
    """Run the two parts of a batched program, with results laid out as those of the program."""
    batched = jax.vmap(
        partial(parts, pace), in_axes=tuple(dims), out_axes=list(depths), **axis.options
    )
    outs = batched(*args[consts:])
    return [
        lax.index_in_dim(out, 0, depth, keepdims=False) if i in unbatched else out
        for i, (out, depth) in enumerate(zip(outs, depths, strict=True))
    ]


def _select(values: Sequence[T], which: Sequence[bool]) -> list[T]:
    return [value for value, is_selected in zip(values, which, strict=True) if is_selected]


simulate_p = call_primitive(
    "shardwise_simulate",
    CallRules(_run, _stage, _abstract, _jvp, _split, _transpose, _vmap),
)

"""A simulated program as one JAX primitive.

`simulate` traces a function once and binds `simulate_p` with the jaxpr it got, `shard_map`s and
all. Derivatives and batches of that call are JAX's own derivatives and batches *of the jaxpr*,
bound again: what is simulated is exactly what JAX would run on a real mesh. Only when a call is
executed or compiled does the engine lower it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

from . import _jax
from ._errors import DeadlockError, UnsupportedError, explain_error
from ._jax.virtual import under
from ._lower import Pace, Watch, execute, explain_trouble
from ._program import Body, Join, annotate, build


class Program:
    """A traced function: its jaxpr, and the list of operations once somebody needs it."""

    def __init__(self, jaxpr: Any):
        self.jaxpr = jaxpr
        self.derived: dict[Any, Any] = {}
        """Derivatives and batches of this program, so that each is traced once."""
        self._compiled: dict[Pace, Callable[..., Any]] = {}

    @functools.cached_property
    def body(self) -> Body:
        """The operations, annotated."""
        body = build(self.jaxpr)
        annotate(body)
        return body

    @functools.cached_property
    def watch(self) -> Watch:
        """Where devices may disagree."""
        return Watch(self.body.ops)

    @functools.cached_property
    def avals(self) -> list[Any]:
        """The types of the results."""
        opened = _jax.open_jaxpr(self.jaxpr)
        return [
            _jax.typed(v.aval.shape, v.aval.dtype, getattr(v.aval, "weak_type", False))
            for v in opened.outvars
        ]

    @functools.cached_property
    def effects(self) -> set[Any]:
        """What running it does besides giving results."""
        own = _jax.without_axes(_jax.open_jaxpr(self.jaxpr).effects)
        # A tangent program that JAX only wants to transpose need not be one that can be run.
        with contextlib.suppress(UnsupportedError):
            own |= {_jax.MAY_DEADLOCK} if self.watch.sites else set()
        return own

    def function(self, *args: Any) -> list[Any]:
        """The program as JAX sees it; to be traced, not run. Constants come first in `args`."""
        opened = _jax.open_jaxpr(self.jaxpr)
        count = len(opened.consts)
        return list(_jax.evaluate(self.jaxpr, args[:count], args[count:]))

    def compiled(self, pace: Pace) -> Callable[..., Any]:
        """The lowered program, compiled."""
        if pace not in self._compiled:
            body, watch = self.body, self.watch
            self._compiled[pace] = jax.jit(lambda *args: execute(body, args, watch, pace))
        return self._compiled[pace]


def trace(f: Callable[..., Any], *args: Any) -> tuple[Program, list[Any], Any]:
    """Trace `f`: the program, the constants it closes over, and the tree of its results."""
    jaxpr, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    consts = list(_jax.open_jaxpr(jaxpr).consts)
    return Program(jaxpr), consts, jax.tree.structure(shape)


def call(program: Program, pace: Pace, args: Sequence[Any]) -> list[Any]:
    """Run a program now, or stage it out where `args` are traced."""
    return simulate_p.bind(*args, program=program, pace=pace)


# --- running


def _run(*args: Any, program: Program, pace: Pace) -> list[Any]:
    with under(None):  # a simulated program runs on no mesh
        outs, trouble = program.compiled(pace)(*map(_here, args))
    if trouble is not None and int(trouble.site):
        raise explain_trouble(program.watch.sites, int(trouble.site), np.asarray(trouble.ways))
    return outs


def _here(x: Any) -> Any:
    """An array spread over several devices, in one place, from where it may go anywhere."""
    return _jax.together(x) if isinstance(x, jax.Array) and len(x.devices()) > 1 else x


def _stage(*args: Any, program: Program, pace: Pace) -> list[Any]:
    args = tuple(map(_jax.whole, args))
    outs, trouble = execute(program.body, args, program.watch, pace)
    outs = [jnp.asarray(out) for out in outs]
    if trouble is None:
        return outs
    _jax.surface(DeadlockError, _recognise)

    def tell(site: Any, ways: Any) -> Any:
        if int(site):
            error = explain_trouble(program.watch.sites, int(site), np.asarray(ways))
            _TOLD.append(error)
            raise error
        return np.int32(0)

    told = io_callback(tell, jax.ShapeDtypeStruct((), jnp.int32), *trouble)
    # No result leaves before the callback has had its say.
    *outs, _ = lax.optimization_barrier((*outs, told))
    return list(outs)


_TOLD: collections.deque[Exception] = collections.deque(maxlen=16)
"""What callbacks have raised of late, to be recognised in XLA's words."""


def _recognise(text: str) -> Exception | None:
    return next((error for error in reversed(_TOLD) if str(error) in text), None)


def _abstract(*_: Any, program: Program, pace: Pace) -> tuple[list[Any], Any]:
    return program.avals, program.effects


# --- transformations


def _derive(
    program: Program, name: Any, f: Callable[..., Any], args: Any, note: Callable[[], Any] = list
) -> tuple[Program, list[Any], Any]:
    """The program of `f`, a transformation of another; `note` is asked once `f` has been traced."""
    key = (name, tuple(map(_type_key, jax.tree.leaves(args))), _jax.trace_context())
    if key not in program.derived:
        made, consts, _ = trace(f, *args)
        program.derived[key] = made, consts, note()
    return program.derived[key]


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, pace: Pace
) -> tuple[list[Any], list[Any]]:
    moving = tuple(t is not None for t in tangents)
    smooth = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in program.avals]
    tree: Any = None

    def forward(*primals: Any) -> tuple[list[Any], list[Any]]:
        nonlocal tree
        own = [p for p, m in zip(primals, moving, strict=True) if m]
        outs, linear = jax.linearize(_partly(program, moving, primals), *own)
        residuals, tree = jax.tree.flatten(linear)
        return outs, residuals

    made, consts, tree = _derive(program, ("forward", moving), forward, primals, lambda: tree)
    _refuse_split_residuals(made.body, made.body.outs[len(smooth) :])
    results = call(made, pace, [*consts, *primals])
    outs, residuals = results[: len(smooth)], results[len(smooth) :]

    def linear(residuals: Any, directions: Any) -> list[Any]:
        out = jax.tree.unflatten(tree, residuals)(*directions)
        return [t for t, real in zip(out, smooth, strict=True) if real]

    directions = [t for t in tangents if t is not None]
    made, consts, _ = _derive(program, ("linear", moving), linear, (residuals, directions))
    found = iter(call(made, pace, [*consts, *residuals, *directions]))
    return outs, [next(found) if real else None for real in smooth]


def _refuse_split_residuals(body: Body, residuals: Sequence[Any]) -> None:
    """Only one value per array leaves a simulated call; a derivative may need every device's."""
    promised = [op for op in body.ops if isinstance(op, Join) and not op.checked]
    broken = {axis for op in promised for axis in op.replicated if axis in op.ins[0].axes}
    split = sorted({axis.name for value in residuals for axis in value.axes & broken})
    if split:
        raise UnsupportedError(
            explain_error(
                f"it needs an output of the function that is declared the same along {split} "
                "and is not",
                where="a derivative of a simulated function",
                rule="With check_vma=False nobody holds an output to its spec; what leaves a "
                "simulated function is the first device's value, and the derivative on the mesh "
                "follows every device's.",
                remedy="name the axis in the output's spec, or simulate the derivative instead: "
                "sw.simulate(jax.grad(f)). sw.check names the output.",
            )
        )


def _transpose(
    cotangents: Sequence[Any],
    args: Sequence[Any],
    types: Sequence[Any],
    *,
    program: Program,
    pace: Pace,
) -> list[Any]:
    linear = tuple(aval is not None for aval in types)
    known = [arg for arg, is_linear in zip(args, linear, strict=True) if not is_linear]
    like = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in types if aval is not None]

    def backward(known: Any, cotangents: Any) -> Any:
        rest = iter(known)
        fixed = [None if is_linear else next(rest) for is_linear in linear]
        return jax.linear_transpose(_partly(program, linear, fixed), *like)(list(cotangents))

    made, consts, _ = _derive(program, ("transpose", linear), backward, (known, list(cotangents)))
    outs = iter(call(made, pace, [*consts, *known, *cotangents]))
    return [next(outs) if is_linear else None for is_linear in linear]


def _partly(program: Program, moving: Sequence[bool], fixed: Sequence[Any]) -> Callable[..., Any]:
    """The program as a function of some of its arguments, the others fixed."""

    def f(*values: Any) -> list[Any]:
        it = iter(values)
        return program.function(
            *[next(it) if m else arg for m, arg in zip(moving, fixed, strict=True)]
        )

    return f


def _vmap(args: Sequence[Any], dims: Sequence[Any], *, program: Program, pace: Pace) -> list[Any]:
    batched = jax.vmap(program.function, in_axes=tuple(dims), out_axes=0)
    made, consts, _ = _derive(program, ("vmap", tuple(dims)), batched, args)
    return call(made, pace, [*consts, *args])


def _type_key(x: Any) -> Any:
    aval = jax.typeof(x)
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)


simulate_p = _jax.call_primitive(
    "shardwise_simulate",
    _jax.CallRules(_run, _stage, _abstract, _jvp, _transpose, _vmap),
)

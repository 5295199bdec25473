"""Make a program a single primitive, which JAX differentiates, batches and compiles by rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _partial
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir


@dataclasses.dataclass(frozen=True)
class CallRules:
    """The rules of a primitive that stands for a program; all get the program as a keyword."""

    run: Callable[..., list[Any]]
    """Run eagerly."""
    trace: Callable[..., list[Any]]
    """Stage as JAX code, under an outer `jit`."""
    abstract: Callable[..., tuple[list[Any], Any]]
    """Return the types of the results, and the effects."""
    jvp: Callable[..., tuple[list[Any], list[Any]]]
    """`(primals, tangents)` with None for a tangent that is zero; None for one that stays so."""
    split: Callable[..., Callable[..., list[Any]] | None]
    """Return a function with the same results in several calls, so that some can run before all
    arguments are known; None if there is only one."""
    transpose: Callable[..., list[Any]]
    """`(cotangents, args, linear)`: cotangents of the linear arguments, None for the others. A zero
    cotangent is None: nonlinear results may be unused."""
    vmap: Callable[..., tuple[list[Any], list[Any]]]
    """`(batch, args, dims)`: results, and where each is batched."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """The parameters of a `vmap`."""

    name: Any
    size: int
    spmd_name: Any

    @property
    def options(self) -> dict[str, Any]:
        """Return them as keywords of `jax.vmap`."""
        return {
            "axis_name": self.name,
            "axis_size": self.size,
            "spmd_axis_name": self.spmd_name,
        }


def call_primitive(name: str, rules: CallRules) -> Any:
    """Make a primitive that JAX differentiates, batches and compiles by `rules`."""
    primitive = jex.Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(rules.run)
    primitive.def_effectful_abstract_eval(rules.abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(rules.trace, multiple_results=True))

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
        directions = [None if isinstance(t, ad.Zero) else t for t in tangents]
        outs, out_tangents = rules.jvp(primals, directions, **params)
        zeros = [_zero(out) if t is None else t for out, t in zip(outs, out_tangents, strict=True)]
        return outs, zeros

    def transpose(cotangents: Any, *args: Any, **params: Any) -> list[Any]:
        linear = [ad.is_undefined_primal(arg) for arg in args]
        avals = [
            arg.aval if is_linear else None for arg, is_linear in zip(args, linear, strict=True)
        ]
        cotangents = [None if isinstance(ct, ad.Zero) else ct for ct in cotangents]
        return rules.transpose(cotangents, args, avals, **params)

    def batch(axis: Any, args: Any, dims: Any, **params: Any) -> tuple[list[Any], list[Any]]:
        name = None if axis.name is _core.no_axis_name else axis.name
        return rules.vmap(Batch(name, axis.size, axis.spmd_name), args, dims, **params)

    def split(trace: Any, *tracers: Any, **params: Any) -> Any:
        parts = rules.split(**params)
        known = [tracer.is_known() for tracer in tracers]
        if parts is None or all(known) or not any(known):
            return trace.default_process_primitive(primitive, tracers, params)
        with _core.set_current_trace(trace):
            return parts(*tracers)

    def divide(saveable: Any, unknown: Any, there: Any, eqn: Any) -> Any:
        parts = rules.split(**eqn.params)
        if parts is None or all(unknown) or not any(unknown):
            return _undivided(saveable, unknown, there, eqn)
        return _divided(parts, saveable, unknown, there, eqn)

    ad.primitive_jvps[primitive] = jvp
    _partial.custom_partial_eval_rules[primitive] = split
    _partial.partial_eval_jaxpr_custom_rules[primitive] = divide
    ad.primitive_transposes[primitive] = transpose
    batching.fancy_primitive_batchers[primitive] = batch
    return primitive


def _divided(parts: Any, saveable: Any, unknown: Any, there: Any, eqn: Any) -> Any:
    """Apply the rule of `jax.checkpoint` to an equation in parts: JAX's own rule for a call of
    them."""
    with eqn.ctx.manager:
        jaxpr = jax.make_jaxpr(parts)(*(v.aval for v in eqn.invars))
    call_eqn = eqn.replace(
        primitive=_core.closed_call_p, params={"call_jaxpr": jaxpr}, effects=jaxpr.effects
    )
    rule = _partial.partial_eval_jaxpr_custom_rules[call_eqn.primitive]
    return rule(saveable, unknown, there, call_eqn)


def _undivided(saveable: Any, unknown: Any, there: Any, eqn: Any) -> Any:
    """Apply the default rule of `jax.checkpoint` to an equation.

    Returns:
        The equation to run now, the one to run later, which results are unknown now, which are
        at hand later, and what later needs of now.
    """
    all_false, all_true = [False] * len(eqn.outvars), [True] * len(eqn.outvars)
    inputs = zip(eqn.invars, there, strict=True)
    needed = [v for v, is_available in inputs if isinstance(v, jex.Var) and not is_available]
    if any(unknown):
        return None, eqn, all_true, all_true, needed
    avals = [v.aval for v in eqn.invars]
    policy = _partial.ensure_enum(saveable(eqn.primitive, *avals, **eqn.params))
    if eqn.effects or not isinstance(policy, _partial.RecomputeType):
        return eqn, None, all_false, all_false, []
    return eqn, eqn, all_false, all_true, needed


def _zero(primal: Any) -> Any:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())

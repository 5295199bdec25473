"""Copy equations of a program into another one.

Applying a primitive would make JAX recompute types and source lines, and rebuild an equation that
exists. A run of such equations is added to a program as one equation that contains them all, and is
lowered inline, not as a separate function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src import source_info_util as _source
from jax._src.interpreters import mlir as _mlir
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.interpreters import batching, mlir

from .jaxprs import bind


def copies_equations() -> bool:
    """Return whether types do not depend on an ambient mesh, so that equations can be copied."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)


@dataclasses.dataclass(frozen=True, slots=True)
class Equation:
    """A callable that applies a primitive, and whose equation may be copied."""

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


class EquationRun:
    """A run of equations under construction; any hashable objects identify its values."""

    def __init__(self):
        self._eqns: list[Any] = []
        self._ins: list[Any] = []
        self._arrays: list[Any] = []
        self._known: dict[Any, Any] = {}
        self._types: dict[Any, Any] = {}
        self._context = _core.current_jaxpr_eqn_context()
        self._nowhere = _source.new_source_info()

    def knows(self, value: Any) -> bool:
        """Return whether a value exists."""
        return value in self._known

    def give(self, value: Any, array: Any) -> None:
        """Add an argument; a NumPy scalar becomes a literal in the equations."""
        if isinstance(array, np.generic | np.ndarray) and not np.shape(array):
            self._known[value] = jex.Literal(array, self._type((), array.dtype))
            return
        var = self._known[value] = _core.Var(_core.typeof(array))
        self._ins.append(var)
        self._arrays.append(array)

    def add(
        self,
        primitive: Any,
        params: dict[str, Any],
        ins: Sequence[Any],
        outs: Sequence[tuple[Any, tuple[int, ...], Any]],
        source: Any,
    ) -> None:
        """Add an equation; `outs` are values with their shapes and types."""
        out_vars = [_core.Var(self._type(shape, dtype)) for _, shape, dtype in outs]
        self._eqns.append(
            jex.JaxprEqn(
                [self._known[value] for value in ins],
                out_vars,
                primitive,
                params,
                _core.no_effects,
                source or self._nowhere,
                self._context,
            )
        )
        self._known.update(zip((value for value, _, _ in outs), out_vars, strict=True))

    def alias(self, value: Any, other: Any) -> None:
        """Add a second identifier for a value."""
        self._known[other] = self._known[value]

    def apply(self, values: Sequence[Any]) -> list[Any]:
        """Return the arrays of these values."""
        outs = [self._known[value] for value in values]
        info = _info(self._ins, outs)
        jaxpr = jex.Jaxpr([], self._ins, outs, self._eqns, _core.no_effects, info)
        return equation_run_p.bind(*self._arrays, jaxpr=jaxpr)

    def _type(self, shape: tuple[int, ...], dtype: Any) -> Any:
        aval = self._types.get((shape, dtype))
        if aval is None:
            aval = self._types[shape, dtype] = ShapedArray(shape, dtype)
        return aval


def _info(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
    return _core.DebugInfo("shardwise", "a run of equations", ("",) * len(ins), ("",) * len(outs))


def _evaluate(*args: Any, jaxpr: Any) -> list[Any]:
    return _core.eval_jaxpr(jaxpr, [], *args)


def _lower(ctx: Any, *args: Any, jaxpr: Any) -> Any:
    outs, _ = _mlir.jaxpr_subcomp(
        ctx.module_context,
        jaxpr,
        ctx.name_stack,
        ctx.tokens_in,
        [],
        *args,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    return outs


def _batch(args: Any, dims: Any, *, jaxpr: Any) -> tuple[list[Any], list[int]]:
    batched = jax.vmap(lambda *args: _evaluate(*args, jaxpr=jaxpr), in_axes=tuple(dims))
    return batched(*args), [0] * len(jaxpr.outvars)


equation_run_p = jex.Primitive("shardwise_straight")
equation_run_p.multiple_results = True
equation_run_p.def_impl(_evaluate)
equation_run_p.def_abstract_eval(lambda *_, jaxpr: [v.aval for v in jaxpr.outvars])
mlir.register_lowering(equation_run_p, _lower, cacheable=False)
batching.primitive_batchers[equation_run_p] = _batch

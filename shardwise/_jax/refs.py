"""Convert programs with mutable refs to programs without."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import core as _core
from jax._src import custom_derivatives as _custom
from jax._src.interpreters import partial_eval as _partial
from jax._src.state import discharge as _discharge
from jax._src.state import types as _state
from jax.core import eval_jaxpr
from jax.extend import core as jex

from .._base.errors import UnsupportedError
from .jaxprs import open_jaxpr
from .patches import Patch, Patches


def without_refs(jaxpr: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a closed jaxpr without mutable refs: their values are threaded through it.

    This is what JAX does itself before it compiles, so reads and writes keep their order.

    Returns:
        The jaxpr, which takes its constants as arguments if it had refs; and the indices of the
        inputs, constants first, that were refs. Their last values are further results.
    """
    if not has_refs(jaxpr):
        return jaxpr, ()
    inner = _partial.convert_constvars_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))
    token = _DIFFERENTIABLE.set(True)
    try:
        with _PATCHES.installed():
            pure = _discharge.discharge_state(jex.ClosedJaxpr(inner, ()))
    finally:
        _DIFFERENTIABLE.reset(token)
    first = len(open_jaxpr(pure).consts)
    refs = [i for i, v in enumerate(inner.invars, first) if isinstance(v.aval, _state.AbstractRef)]
    return pure, tuple(refs)


def has_refs(jaxpr: Any) -> bool:
    """Return whether a jaxpr creates or takes mutable refs."""
    return any(_is_state(effect) for effect in open_jaxpr(jaxpr).effects)


def _is_state(effect: Any) -> bool:
    return isinstance(effect, _state.RefEffect) or effect is _core.internal_mutable_array_effect


# --- derivatives of the result

# JAX removes refs last, after differentiation, and the rules of `custom_jvp` and `custom_vjp` with
# them. A simulated program is differentiated afterwards.

_DIFFERENTIABLE: contextvars.ContextVar[bool] = contextvars.ContextVar("keeps", default=False)


def _patches() -> list[Patch]:
    """Return the patches that keep derivative rules."""
    rules = _discharge._discharge_rules
    return [
        Patch(_discharge, "_discharge_state", _keeping),
        *(
            Patch(rules, primitive, functools.partial(_with_its_rule, primitive))
            for primitive in (_custom.custom_jvp_call_p, _custom.custom_vjp_call_p)
        ),
    ]


_PATCHES = Patches(_patches)


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def discharge(jaxpr: Any, which: Any, lower: bool, *rest: Any) -> Any:
        return original(jaxpr, which, lower and not _DIFFERENTIABLE.get(), *rest)

    return discharge


def _with_its_rule(primitive: Any, original: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return the rule for a function with a custom derivative rule and refs inside."""

    def discharge(*all_args: Any, call_jaxpr: Any, **params: Any) -> Any:
        if not _DIFFERENTIABLE.get():
            if original is None:
                raise NotImplementedError(f"No state discharge rule for primitive: {primitive}")
            return original(*all_args, call_jaxpr=call_jaxpr, **params)
        args = all_args[len(all_args) - len(call_jaxpr.in_avals) :]
        is_ref = [isinstance(aval, _state.AbstractRef) for aval in call_jaxpr.in_avals]
        pure = _discharge.discharge_state(call_jaxpr)
        if any(is_ref):
            outs = _underivable(lambda *args: eval_jaxpr(pure.jaxpr, pure.consts, *args))(*args)
        else:
            bound = primitive.get_bind_params({**params, "call_jaxpr": pure})
            outs = primitive.bind(*args, **bound)
        last = iter(outs[len(call_jaxpr.out_avals) :])
        new_refs = [next(last) if ref else None for ref in is_ref]
        return new_refs, outs[: len(call_jaxpr.out_avals)]

    return discharge


def _underivable(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that cannot be differentiated."""
    wrapped = jax.custom_jvp(f)

    @wrapped.defjvp
    def refuse(primals: Any, tangents: Any) -> Any:
        raise UnsupportedError(
            "it differentiates a function that takes a ref and has a custom derivative rule",
            where="custom_vjp, custom_jvp",
            rule="A simulated program passes values, but the rule takes the ref.",
            remedy="simulate the derivative, sw.simulate(jax.grad(f), mesh=mesh), or pass the "
            "value of the ref.",
        )

    return wrapped

"""Convolutions in the one order of dimensions that XLA is fast at on a CPU.

It brings them into this order itself, but looks for them outside of loops only. The gradient of a
convolution's weights, which autodiff writes in another order, takes twenty to forty times as long
in a loop (`benchmarks/workarounds.py`). So whoever makes a loop of a user's program brings them
into order:

    conv(x, w)   becomes   transpose(conv(transpose(x), transpose(w)))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax

from .jaxprs import bind, open_jaxpr
from .lines import same_place

CONVOLUTION = "conv_general_dilated"


@dataclasses.dataclass(frozen=True)
class Orders:
    """How the dimensions of both operands are permuted first, and those of the result after."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def params(self) -> dict[str, Any]:
        """Batch, space, features; of weights: space, inputs, outputs."""
        last = len(self.left) - 1
        images = (0, last, *range(1, last))
        weights = (last, last - 1, *range(last - 1))
        return {"dimension_numbers": lax.ConvDimensionNumbers(images, weights, images)}


def unordered(params: dict[str, Any]) -> Orders | None:
    """What to do to a convolution; None where it is in order."""
    left, (outputs, *rest), results = map(_features_last, params["dimension_numbers"])
    found = Orders(left, (*rest, outputs), tuple(map(int, np.argsort(results))))
    kept = tuple(range(len(left)))
    return None if found == Orders(kept, kept, kept) else found


def _features_last(spec: Sequence[int]) -> tuple[int, ...]:
    """Where the dimensions are: batch, space, features; of weights: outputs, space, inputs."""
    first, features, *space = spec
    return (first, *space, features)


# --- in a function that somebody loops over


def are_unordered(jaxpr: Any) -> bool:
    """Whether a program has a convolution that is not in order."""
    return any(
        unordered(eqn.params) is not None
        if eqn.primitive.name == CONVOLUTION
        else any(map(are_unordered, jex.jaxprs_in_params(eqn.params)))
        for eqn in open_jaxpr(jaxpr).eqns
    )


def in_order(f: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its convolutions in order, but for those in loops of its own."""

    def run(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
        outs = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    return run


def _evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    jaxpr = open_jaxpr(jaxpr)
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*jaxpr.consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        with eqn.ctx.manager, same_place(eqn.source_info):
            outs = _apply(eqn, list(map(read, eqn.invars)))
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _apply(eqn: Any, ins: list[Any]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == CONVOLUTION and (orders := unordered(params)):
        left, right = ins
        ins = [lax.transpose(left, orders.left), lax.transpose(right, orders.right)]
        (out,) = bind(eqn.primitive, params | orders.params, *ins)
        return [lax.transpose(out, orders.after)]
    if name in ("jit", "checkpoint", "remat2") and are_unordered(params["jaxpr"]):
        inner = partial(_evaluate, params["jaxpr"])
        if name == "jit":
            return inner(ins)
        ordered = jax.make_jaxpr(lambda *args: inner(args))(*ins)
        assert not ordered.consts, "what is computed anew takes all that it needs"
        params = params | {"jaxpr": getattr(ordered, "jaxpr", ordered)}
    return bind(eqn.primitive, params, *ins)

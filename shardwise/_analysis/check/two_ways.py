"""The two remedies for a gradient that autodiff has summed."""

from __future__ import annotations

from ... import _jax
from ..._program import Collective, Op

AROUND = (
    "average the loss over {over} where it is made: jax.lax.pmean instead of psum inside the "
    "shard_map; or the mean, not the sum, of what it returns for each device."
)
REDUCED = """differentiate the reduced loss, which autodiff handles:
    jax.grad(lambda w: jax.lax.pmean(loss(w, x), {over}))(w)"""

LOCAL = """or make the parameters differ first, and reduce the gradients yourself:
    w = jax.lax.pcast(w, {over}, to='varying')
    jax.lax.pmean(jax.grad(loss)(w, x), {over})"""

INSIDE = "Where the loss is summed over {over} inside already, average it there instead."


def two_ways(of: Op, over: str) -> str:
    """Return the remedy for a gradient that is reduced once more; `of` is an operation of it."""
    if _jax.is_derived_around((of.source, *of.calls)):
        return AROUND.format(over=over)
    # A reduce-scatter is the gradient of split parameters, which differ between devices already.
    split = isinstance(of, Collective) and of.name != "psum"
    ways = [REDUCED] if split else [f"either {REDUCED}", LOCAL]
    return "\n".join([*ways, INSIDE]).format(over=over)

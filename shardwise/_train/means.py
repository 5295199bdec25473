"""A scalar stands for the mean of its rows. One that is something else is found out by its meaning.

The mean of the devices' sums is a share of the sum, and the mean of their square roots is no root:
neither shows on one device. So a scalar is read as `sw.prove` reads a program, from shapes alone.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from .._errors import ShardingError, explain_error
from .._mesh import mesh as virtual_mesh
from .layout import Layout
from .losses import read_loss
from .part import LossOf, Place
from .statistics import shapes_of

A_SUM, NOT_LINEAR = "SW402", "SW405"


def refuse_other_scalars(
    loss: LossOf, has_aux: bool, layout: Layout, params: Any, state: Any, batch: Any
) -> None:
    """Raise if a scalar of a loss is known not to be the mean of its rows.

    Args:
        loss: The loss.
        has_aux: Whether it has further metrics.
        layout: The mesh and how the rows lie on it.
        params: What to differentiate by, for its shapes; and so the rest.
        state: What else the loss needs.
        batch: The rows.
    """
    from .._prove import prove

    # One row is its own mean, and its own sum.
    rows = max(2, jax.tree.leaves(batch)[0].shape[0] // layout.parts)
    sizes = dict(layout.mesh.shape) | {layout.axis: 2}
    twice = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2 * rows, *x.shape[1:]), x.dtype), batch)

    def body(params: Any, state: Any, batch: Any) -> Any:
        rows = jax.tree.leaves(batch)[0].shape[0]
        place = Place(jax.random.key(0), lax.axis_index(layout.axis), rows)
        output, _ = loss(params, state, batch, place)
        first, metrics = read_loss(output, has_aux, rows)
        terms = {"loss": first, **metrics}
        scalars = {name: term.values for name, term in terms.items() if term.scalar}
        return jax.tree.map(lambda value: lax.pmean(value, layout.axis), scalars)

    def program(params: Any, state: Any, batch: Any, *, mesh: Any) -> Any:
        specs = P(), P(), P(layout.axis)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            params, state, batch
        )

    try:
        shapes = *shapes_of((params, state)), twice
        proof = prove(program, *shapes, mesh=virtual_mesh(sizes), run=False)
    except Exception:
        return  # it takes one number of rows only, or cannot be read: not known to be wrong
    for finding in proof.findings:
        if finding.code in (A_SUM, NOT_LINEAR):
            raise _no_mean(finding)


def _no_mean(finding: Any) -> ShardingError:
    name = finding.leaf.split("'")[1]
    if finding.code == A_SUM:
        found, rule = "adds its rows up", "of n devices' sums, the mean is one nth of the sum."
    else:
        found = "is not the mean of its rows"
        if finding.where.file:  # a line of the loss; the mean that comes after it is ours
            found += f": {finding.message.partition(': ')[2]}, {finding.where}"
        rule = "what each device has is averaged."
    return ShardingError(
        explain_error(
            f"its {name!r} is a scalar that {found}",
            where="the loss",
            rule=f"A scalar stands for the mean of the rows it was given: {rule}",
            remedy="return the losses per row, without the sum; (losses, weights) for a weighted "
            "mean.",
        )
    )

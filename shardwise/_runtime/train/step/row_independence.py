"""Check that the values a loss returns do not depend on the number of rows per device.

A scalar loss has to be a mean over rows: the mean over devices of sums, or of square roots, is not
the sum or the root over the batch. A value per row must not use a mean over the rows of one device.
Neither mistake shows on one device. So the loss is analysed as `sw.prove` analyses a program, from
shapes alone.
"""

from __future__ import annotations

import ast
import math
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from .... import _jax
from ...._base.errors import ShardingError
from ...._mesh import mesh as virtual_mesh
from ...._mesh import one_device
from .layout import BatchLayout
from .losses import Objective
from .part import BatchPart
from .statistics import shapes_of

A_SUM, A_SHARE, NOT_LINEAR = "SW402", "SW403", "SW405"
_WRONG = {"scalar": (A_SUM, NOT_LINEAR), "row": (A_SHARE, NOT_LINEAR)}

MANY = 1 << 26
"""A loss whose arguments have more elements than this is not run to confirm a finding."""


def refuse_mixed_rows(objective: Objective, layout: BatchLayout, inputs: Any) -> None:
    """Raise if a result of a loss is known to depend on the number of rows per device.

    That is a scalar that is not the mean of its rows, or a value or a weight of a row that uses a
    sum or a maximum over the other rows. Unknown results pass.

    Args:
        objective: The loss.
        layout: The mesh and how the rows are split over it.
        inputs: Params, other state and rows; only for their shapes.
    """
    from ...._analysis.prove import prove
    from ...._meaning import PICKED

    params, state, batch = inputs
    # At least two rows: one row is its own mean and its own sum.
    rows = max(2, jax.tree.leaves(batch)[0].shape[0] // layout.parts)
    sizes = dict(layout.mesh.shape) | {layout.axis: 2}
    twice = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2 * rows, *x.shape[1:]), x.dtype), batch)

    def body(params: Any, state: Any, batch: Any) -> Any:
        rows = jax.tree.leaves(batch)[0].shape[0]
        place = BatchPart(jax.random.key(0), lax.axis_index(layout.axis), rows)
        terms, _ = objective.terms(params, state, batch, place)
        scalars = {name: term.values for name, term in terms.items() if term.scalar}
        means = {name: lax.pmean(value, layout.axis) for name, value in scalars.items()}
        values = {name: term.values for name, term in terms.items() if not term.scalar}
        weights = {n: term.weights for n, term in terms.items() if term.weights is not None}
        return means, values, weights

    def program(params: Any, state: Any, batch: Any, *, mesh: Any) -> Any:
        ins, outs = (P(), P(), P(layout.axis)), (P(), P(layout.axis), P(layout.axis))
        return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)(
            params, state, batch
        )

    mesh = virtual_mesh(sizes)
    try:
        shapes = *shapes_of((params, state)), twice
        proof = prove(program, *shapes, mesh=mesh, run=False)
    except Exception:
        return  # it accepts one number of rows only, or cannot be analysed: not known to be wrong
    # One row may be picked for all: a temperature that the batch repeats once per row.
    findings = [finding for finding in proof.findings if PICKED not in finding.message]
    errors = [finding for finding in findings if finding.code in _WRONG[_kind(finding)]]
    if not all(finding.certain for finding in errors):
        wrong_leaves = _wrong_by_numbers(program, shapes, mesh)
        errors = [
            finding
            for finding in errors
            if finding.certain or wrong_leaves is None or finding.leaf in wrong_leaves
        ]
    for finding in errors:
        raise (_no_mean if _kind(finding) == "scalar" else _no_row)(finding, layout.axis)


def _kind(finding: Any) -> str:
    return "scalar" if finding.leaf.startswith("result[0]") else "row"


def _wrong_by_numbers(program: Any, shapes: Any, mesh: Any) -> set[str] | None:
    """Return the results that numerically depend on the number of devices; None if not tried.

    The rules may report a mistake where there is none: `log(sum(exp(z - z.max()))) + z.max()` uses
    a maximum over the rows, but does not depend on it.
    """
    from ...._analysis.check import examine
    from ...._engine.static import Static

    if sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) > MANY:
        return None
    try:
        with _jax.outside_traces():  # a step is being traced around it
            options = None, Static.of(None, None)
            meshes = [one_device(mesh), mesh]
            # A guard such as `jnp.nan_to_num(loss)` is no reason to refuse a loss.
            verdict = examine(program, shapes, meshes, None, options, finite=True).verdict
    except Exception:
        return None
    certain = [finding for finding in verdict.findings if finding.certain]
    leaves = {leaf for finding in certain for leaf in finding.leaves}
    return None if "" in leaves else leaves  # "" is a finding about the whole program


def _no_mean(finding: Any, axis: str) -> ShardingError:
    if finding.code == A_SUM:
        problem, rule = "sums over its rows", "the mean of n devices' sums is one nth of the sum."
    else:
        problem, rule = "is not the mean of its rows", "the values of the devices are averaged."
        if finding.where.file:  # a line of the loss, not of the mean that follows it
            problem += f": {finding.message.partition(': ')[2]}, {finding.where}"
    return ShardingError(
        f"its {_name(finding)!r} is a scalar that {problem}",
        where="the loss",
        rule=f"A scalar loss is the mean of its rows: {rule}",
        remedy="return the losses per row, without the sum; (losses, weights) for a weighted "
        "mean. For a root or a ratio of sums, use the collective first: "
        f"jnp.sqrt(jax.lax.pmean(x.mean(), {axis!r})).",
    )


def _no_row(finding: Any, axis: str) -> ShardingError:
    subject = "weights are" if finding.leaf.startswith("result[2]") else "values are"
    place = f", {finding.where}" if finding.where.file else ""
    return ShardingError(
        f"its {_name(finding)!r} has one per row, but these {subject} not independent: they "
        f"use a reduction over the rows of one device{place}",
        where="the loss",
        rule="A value per row must not depend on the other rows of its device: it would change "
        "with the number of devices.",
        remedy=f"reduce over the rows of all devices, lax.pmean(x.mean(0), {axis!r}) or "
        f"lax.pmax(x.max(0), {axis!r}); or statistics='shard', if each device is meant to have "
        "its own.",
    )


def _name(finding: Any) -> str:
    path = finding.leaf.partition("]")[2]  # of result[1]['accuracy']
    return ast.literal_eval(path)[0]

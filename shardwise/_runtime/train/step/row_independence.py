"""What a loss returns stands for its rows alone. What does not is found out by its meaning.

The mean of the devices' sums is a share of the sum, and the mean of their square roots is no root;
a row from which the mean of a device's rows is taken is another one on another number of devices.
None of it shows on one device. So a loss is read as `sw.prove` reads a program, from shapes alone.
"""

from __future__ import annotations

import ast
import math
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from .... import _jax
from ...._base.errors import ShardingError, explain_error
from ...._mesh import mesh as virtual_mesh
from ...._mesh import one_device
from .layout import Layout
from .losses import read_loss
from .part import LossOf, Place
from .statistics import shapes_of

A_SUM, A_SHARE, NOT_LINEAR = "SW402", "SW403", "SW405"
_WRONG = {"scalar": (A_SUM, NOT_LINEAR), "row": (A_SHARE, NOT_LINEAR)}

MANY = 1 << 26
"""A loss whose arguments have more elements than this is not run beside the step."""


def refuse_mixed_rows(
    loss: LossOf, has_aux: bool, layout: Layout, params: Any, state: Any, batch: Any
) -> None:
    """Raise if a result of a loss is known to depend on how many rows a device has.

    That is a scalar that is not the mean of its rows, or a value of a row, or its weight, in which
    a sum or a maximum over the other rows is used. What no rule says anything of passes.

    Args:
        loss: The loss.
        has_aux: Whether it has further metrics.
        layout: The mesh and how the rows lie on it.
        params: What to differentiate by, for its shapes; and so the rest.
        state: What else the loss needs.
        batch: The rows.
    """
    from ...._analysis.prove import prove
    from ...._meaning import PICKED

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
        return  # it takes one number of rows only, or cannot be read: not known to be wrong
    # A number of one row stands for all of them: a temperature that the batch has once per row.
    known = [one for one in proof.findings if PICKED not in one.message]
    found = [one for one in known if one.code in _WRONG[_kind(one)]]
    if not all(one.certain for one in found):
        wrong = _wrong_by_numbers(program, shapes, mesh)
        found = [one for one in found if one.certain or wrong is None or one.leaf in wrong]
    for finding in found:
        raise (_no_mean if _kind(finding) == "scalar" else _no_row)(finding, layout.axis)


def _kind(finding: Any) -> str:
    return "scalar" if finding.leaf.startswith("result[0]") else "row"


def _wrong_by_numbers(program: Any, shapes: Any, mesh: Any) -> set[str] | None:
    """Which results are seen to depend on the number of devices; None if it cannot be tried.

    What the rules take for a mistake may be none: `log(sum(exp(z - z.max()))) + z.max()` uses what
    the rows have in common, and does not depend on it.
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
    certain = [one for one in verdict.findings if one.certain]
    wrong = {leaf for one in certain for leaf in (one.leaf, *one.likewise)}
    return None if "" in wrong else wrong  # what is said of the whole program


def _no_mean(finding: Any, axis: str) -> ShardingError:
    if finding.code == A_SUM:
        found, rule = "adds its rows up", "of n devices' sums, the mean is one nth of the sum."
    else:
        found, rule = "is not the mean of its rows", "what each device has is averaged."
        if finding.where.file:  # a line of the loss; the mean that comes after it is ours
            found += f": {finding.message.partition(': ')[2]}, {finding.where}"
    return ShardingError(
        explain_error(
            f"its {_name(finding)!r} is a scalar that {found}",
            where="the loss",
            rule=f"A scalar stands for the mean of the rows it was given: {rule}",
            remedy="return the losses per row, without the sum; (losses, weights) for a weighted "
            "mean. Of a root, or a ratio of sums, the collective comes first: "
            f"jnp.sqrt(jax.lax.pmean(x.mean(), {axis!r})).",
        )
    )


def _no_row(finding: Any, axis: str) -> ShardingError:
    what = "weights are" if finding.leaf.startswith("result[2]") else "values are"
    place = f", {finding.where}" if finding.where.file else ""
    return ShardingError(
        explain_error(
            f"its {_name(finding)!r} has one per row, but these {what} not those of a row: they "
            f"use what the rows of one device have in common{place}",
            where="the loss",
            rule="What is returned per row does not depend on the other rows of its device: it "
            "would be another one on another number of devices.",
            remedy=f"take what all rows have in common over all of them, lax.pmean(x.mean(0), "
            f"{axis!r}) or lax.pmax(x.max(0), {axis!r}); or statistics='shard', if each device is "
            "meant to have its own.",
        )
    )


def _name(finding: Any) -> str:
    path = finding.leaf.partition("]")[2]  # of result[1]['accuracy']
    return ast.literal_eval(path)[0]

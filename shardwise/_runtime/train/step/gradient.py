"""The gradient of the mean loss over a whole batch: a `shard_map` with one reduction in it.

Each device differentiates its own share of the sum with respect to its own copy of the params, and
one `psum` adds up gradients, losses and metrics together. Inside the body nothing else is reduced:
the body runs with `check_vma=False`, where autodiff adds no reductions of its own, and where the
transpose of a collective is the transpose of what it does on all devices together. So a loss may
have collectives over the data axis, and the gradient is still that of the sum over all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .... import _jax
from ...._base.errors import ShardingError
from .dependence import dependents, depends
from .layout import BatchLayout
from .losses import LossTerm, Objective, accumulator
from .part import BatchPart
from .row_independence import refuse_mixed_rows
from .statistics import keep_statistics, refuse_split, refuse_varying


@dataclass(frozen=True)
class Reduced:
    """The results of one reduction over the whole batch.

    Attributes:
        grads: The gradient of the mean loss, of the dtypes of the params.
        metrics: The mean loss as `loss`, the further metrics, and the sum of `weight`.
        state: The other state of the model, updated.
        certain: Whether the weights are known to have a nonzero sum.
    """

    grads: Any
    metrics: dict[str, Any]
    state: Any
    certain: bool


def reduce_gradients(
    objective: Objective,
    layout: BatchLayout,
    params: Any,
    state: Any,
    batch: Any,
    count: Any,
    key: Any,
    *,
    padded: bool,
) -> Reduced:
    """Return gradient, loss and metrics over all rows of a batch.

    Args:
        objective: The loss.
        layout: The mesh and how the rows are split over it.
        params: What to differentiate by.
        state: Other variables of the loss, such as batch statistics; it may update them.
        batch: The rows; their number divides evenly.
        count: How many of the rows are real; or, for each device, how many of its rows are.
        key: The key of this step.
        padded: Whether some rows may not be real.
    """
    length = jax.tree.leaves(batch)[0].shape[0]
    rows = length // layout.parts
    inputs = params, state, batch
    refuse_split(objective, layout, inputs, padded)
    sizes: dict[str, int] = {}
    values = length  # the number of values that the loss is the mean of
    certain = True  # a batch has a row, so only weights can add up to zero

    per_device = jnp.ndim(count) > 0  # each device has its own padding

    def part_of(params: Any, state: Any, batch: Any, count: Any, key: Any, number: Any) -> Any:
        """Return gradient, sums and state of one part of the batch."""
        shift = None
        if per_device:
            local_count = count[0]
            shift = lambda: _padding_before(local_count, rows, layout)  # noqa: E731
            count = lax.axis_index(layout.axis) * layout.accumulate * rows + local_count
        place = BatchPart(key, number, rows, count if padded else None, shift)
        mask = number * rows + jnp.arange(rows) < count if padded else None

        def total(params: Any) -> Any:
            terms, new = objective.terms(params, state, batch, place)
            loss, here = terms["loss"], (params, state, batch)
            if rows in loss.values.shape[1:]:
                _refuse_rows_crossed(objective, loss, here, place)
            if loss.weights is not None:
                _refuse_trained_weights(objective, here, place)
            nonlocal values, certain
            certain = loss.weights is None
            values = length if loss.scalar else loss.size(length)
            sizes.update({name: t.size(rows) * layout.parts for name, t in terms.items()})
            if padded and any(term.scalar for term in terms.values()):
                _refuse_means(objective, terms, layout, here, place)
            sums = {name: term.sums(None if term.scalar else mask) for name, term in terms.items()}
            scale = _scale(loss, mask, params, layout.axis)
            return sums["loss"][0] / (sizes["loss"] if scale is None else scale), (sums, new, scale)

        (_, (sums, new, scale)), grads = jax.value_and_grad(total, has_aux=True)(params)
        grads = jax.tree.map(lambda g: g.astype(accumulator(g.dtype)), grads)
        if scale is not None:
            grads = jax.tree.map(lambda g: g * (scale / sizes["loss"]).astype(g.dtype), grads)
        return (grads, sums), new

    def body(params: Any, state: Any, batch: Any, count: Any, key: Any) -> Any:
        first = lax.axis_index(layout.axis) * layout.accumulate
        if layout.accumulate == 1:
            sums, new = part_of(params, state, batch, count, key, first)
        else:
            sums, new = _accumulate(
                lambda state, part, k: part_of(params, state, part, count, key, first + k),
                state,
                batch,
                layout.accumulate,
            )
        new = keep_statistics(state, new, layout.axis, objective.statistics)
        add = _packed_psum if layout.shared else lax.psum
        return add(sums, layout.axis), new

    def mapped(mesh: Any) -> Callable[..., Any]:
        specs = (P(), P(), P(layout.axis), P(layout.axis) if per_device else P(), P())
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)

    arguments = *inputs, count, key
    if layout.others:
        refuse_varying(mapped, layout, arguments)
    (grads, sums), state = mapped(layout.mesh)(*arguments)
    if objective.statistics == "batch":
        refuse_mixed_rows(objective, layout, inputs)
    metrics = {
        name: total / (sizes[name] if weight is None else weight)
        for name, (total, weight) in sums.items()
    }
    weight = sums["loss"][1]
    metrics["weight"] = jnp.float32(values if weight is None else weight)
    scale = None if weight is None else sizes["loss"] / weight
    grads = jax.tree.map(
        lambda g, p: (g if scale is None else g * scale.astype(g.dtype)).astype(p.dtype),
        grads,
        params,
    )
    return Reduced(grads, metrics, state, certain)


def _packed_psum(tree: Any, axis: str) -> Any:
    """Apply `psum` with all scalars of a dtype packed: between hosts each reduction has latency."""
    leaves, structure = jax.tree.flatten(tree)
    scalars: dict[Any, list[int]] = {}
    for k, leaf in enumerate(leaves):
        if not leaf.shape:
            scalars.setdefault(leaf.dtype, []).append(k)
    groups = list(scalars.values())
    packed = [jnp.stack([leaves[k] for k in group]) for group in groups]
    rest = [k for k, leaf in enumerate(leaves) if leaf.shape]
    reduced, sums = lax.psum(([leaves[k] for k in rest], packed), axis)
    new = dict(zip(rest, reduced, strict=True))
    for group, total in zip(groups, sums, strict=True):
        new |= {k: total[place] for place, k in enumerate(group)}
    return jax.tree.unflatten(structure, [new[k] for k in range(len(leaves))])


def _padding_before(count: Any, rows: int, layout: BatchLayout) -> Any:
    """Return how many rows of padding the devices before this one have."""
    padding = lax.all_gather(layout.accumulate * rows - count, layout.axis)
    earlier = jnp.arange(layout.devices) < lax.axis_index(layout.axis)
    return jnp.where(earlier, padding, 0).sum()


def _refuse_trained_weights(objective: Objective, inputs: Any, place: BatchPart) -> None:
    """Raise if the weights of a loss depend on the params: then they are not weights."""
    params, state, batch = inputs

    def weights(params: Any) -> Any:
        return objective.terms(params, state, batch, place)[0]["loss"].weights

    if depends(weights, jax.tree.map(jax.lax.stop_gradient, params)):
        raise ShardingError(
            "the second part of what it returned depends on the params",
            where="the loss",
            rule="A pair is (losses, weights), and the weights of the losses are computed from "
            "the batch.",
            remedy="has_aux=True and return losses, {'accuracy': hits} for a metric; "
            "jax.lax.stop_gradient(weights) if weights are meant to depend on the params.",
        )


def _refuse_rows_crossed(
    objective: Objective, loss: LossTerm, inputs: Any, place: BatchPart
) -> None:
    """Raise if the number of losses per row grows with the number of rows."""
    params, state, batch = inputs
    rows = place.rows
    wider = replace(place, rows=2 * rows, count=None, shift=None)

    def twice() -> Any:
        doubled = jax.tree.map(lambda x: jnp.concatenate([x, x]), batch)
        return objective.terms(params, state, doubled, wider)[0]["loss"].values

    try:
        shape = jax.eval_shape(twice).shape
    except Exception:
        return  # the loss accepts only one number of rows
    if shape[1:] != loss.values.shape[1:]:
        raise ShardingError(
            f"it has shape {list(loss.values.shape)} for {rows} rows and {list(shape)} for "
            f"{2 * rows}",
            where="the loss",
            rule="The loss of a row must not depend on the number of rows on its device. "
            "The usual cause is [rows, 1] - [rows], which is [rows, rows].",
            remedy="give both the same shape: predictions[:, 0] - targets, or targets[:, None].",
        )


def _scale(loss: LossTerm, mask: Any, params: Any, axis: str) -> Any:
    """Return a divisor to apply before differentiating; None for the number of values.

    The gradient of a weighted sum can overflow or underflow in float16. So the mean over this part
    is differentiated, and the gradient is multiplied back in float32; by the same number on all
    devices, since the gradient of a loss with collectives contains the losses of other devices.
    """
    dtypes = {leaf.dtype for leaf in [*jax.tree.leaves(params), loss.values]}
    if loss.weights is None or jnp.dtype(jnp.float16) not in dtypes:
        return None
    total = lax.pmax(loss.total(mask), axis)
    return jnp.where(total > 0, total, 1)


def _accumulate(part_of: Any, state: Any, batch: Any, parts: int) -> Any:
    """Add up the sums of all parts of a device's rows, one part after another."""
    stacked = jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), batch)
    part = jax.tree.map(lambda x: x[0], stacked)
    traced, (like, _) = jax.make_jaxpr(part_of, return_shape=True)(state, part, 0)
    if jax.default_backend() == "cpu" and _jax.are_unordered(traced):
        part_of = _jax.in_order(part_of)  # XLA does not reorder dimensions in a loop
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)

    def add(carry: Any, part: Any) -> Any:
        total, state = carry
        k, part = part
        sums, state = part_of(state, part, k)
        return (jax.tree.map(jnp.add, total, sums), state), None

    (total, state), _ = lax.scan(add, (zeros, state), (jnp.arange(parts), stacked))
    return total, state


def _refuse_means(
    objective: Objective,
    terms: dict[str, LossTerm],
    layout: BatchLayout,
    inputs: Any,
    place: BatchPart,
) -> None:
    """Raise if a scalar is a mean over rows that include padding."""
    params, state, batch = inputs

    def values(varying: Any) -> list[Any]:
        rows, key = varying
        again, _ = objective.terms(params, state, rows, replace(place, key=key))
        return [term.values for term in again.values()]

    # A metric that depends on no row and no key, such as a learning rate, needs no mask.
    marks = dependents(values, (batch, place.key))
    scalars = [
        name
        for (name, term), varies in zip(terms.items(), marks, strict=True)
        if term.scalar and (varies or name == "loss")
    ]
    if scalars:
        multiples = ", ".join(str(layout.parts * k) for k in (1, 2, 3))
        raise ShardingError(
            f"its {scalars[0]!r} is a scalar, and the batch does not divide evenly over {layout}",
            where="the loss",
            rule="The mean of unequal parts' means is not the mean of the batch. With a scalar "
            f"loss the batch has a multiple of {layout.parts} rows: {multiples} ...",
            remedy="return the losses per row, without the mean, for any number of rows.",
        )

"""State that a loss updates, such as batch statistics.

Training is to equal training on one device. For the statistics of a `BatchNorm` that holds if they
are computed over the whole batch: the layer names the data axis, the batch is not split further
and has no padding. Otherwise the step raises an error, unless the user asks for statistics per
shard.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...._base.errors import ShardingError, UnsupportedError
from ...._mesh import mesh as virtual_mesh
from .dependence import dependents
from .layout import BatchLayout
from .losses import Objective
from .part import BatchPart, LossOf


def refuse_split(objective: Objective, layout: BatchLayout, inputs: Any, padded: bool) -> None:
    """Raise if the result of a loss would depend on how the batch is split.

    Args:
        objective: The loss.
        layout: The mesh and how the rows are split over it.
        inputs: Params, other state and rows; only for their shapes.
        padded: Whether some rows may not be real.
    """
    by_batch = objective.statistics == "batch"
    split = layout.accumulate > 1
    if not (padded or (by_batch and (split or jax.tree.leaves(inputs[1])))):
        return
    changed, mixed, varying, collective = _effects(objective.loss, layout, inputs, padded)
    if by_batch and varying:
        raise _varies(varying[0], layout)
    if padded and (mixed or collective):
        raise _padded(_coupling(mixed, collective), layout)
    if by_batch and split and (changed or collective):
        raise _split_further(_coupling(changed, collective), layout)


def _effects(
    loss: LossOf, layout: BatchLayout, inputs: Any, padded: bool
) -> tuple[list[str], list[str], list[str], str]:
    """Return the effects of a loss on its state.

    That is the leaves of the state that it updates, those of them that would depend on padding, the
    leaves that then differ between devices, and a collective over the data axis, if there is one.
    """
    from ...._engine.call import trace
    from ...._jax.virtual import virtually
    from ...._program import collectives_in

    params, state, batch = inputs
    # At least two devices: on a mesh of one, nothing differs between devices.
    sizes = dict(layout.mesh.shape)
    sizes[layout.axis] = max(2, layout.devices)
    mesh = virtual_mesh(sizes)
    share = jax.tree.leaves(batch)[0].shape[0] // layout.parts
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((share * sizes[layout.axis], *x.shape[1:]), x.dtype), batch
    )
    unchanged: list[bool] = []

    def body(params: Any, state: Any, batch: Any, key: Any) -> Any:
        place = BatchPart(key, lax.axis_index(layout.axis), share)
        output, new = loss(params, state, batch, place)
        old = jax.tree.leaves(state)
        unchanged[:] = [a is b for a, b in zip(old, jax.tree.leaves(new), strict=True)]
        # The output is returned, so that its collectives are not removed as dead code.
        arrays = [x for x in jax.tree.leaves(output) if hasattr(x, "dtype")]
        return jax.tree.leaves(new), [jnp.asarray(x)[None] for x in arrays]

    def program(params: Any, state: Any, batch: Any, key: Any) -> Any:
        specs = P(), P(), P(layout.axis), P()
        out = P(), P(layout.axis)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(
            params, state, batch, key
        )

    shapes = shapes_of((params, state))
    varied = rows, jax.eval_shape(lambda: jax.random.key(0))  # padding has keys as well
    try:
        with virtually(mesh):  # a separate program, even inside another trace
            ops = trace(program, *shapes, *varied)[0].body
            mixing = [False] * len(unchanged)
            if padded and not all(unchanged):
                mixing = dependents(lambda varied, p, s: program(p, s, *varied)[0], varied, *shapes)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"it is unknown whether its statistics are those of the whole batch: {error}",
            where="the loss",
            remedy="batches that divide evenly, and statistics='shard' if you have made sure "
            "of it.",
        ) from error
    names = _names(state)
    changed = [name for name, same in zip(names, unchanged, strict=True) if not same]
    varying = [name for name, axes in zip(names, _differing(ops), strict=False) if axes]
    collectives = [op for op in collectives_in(ops.ops) if layout.axis in [a.name for a in op.axes]]
    mixed = [name for name, mixes in zip(names, mixing, strict=True) if mixes and name in changed]
    return changed, mixed, varying, str(collectives[0]) if collectives else ""


def refuse_varying(mapped: Any, layout: BatchLayout, arguments: Any) -> None:
    """Raise if the gradient differs along an axis that does not split the rows.

    Args:
        mapped: A function from a mesh to the gradient as a function of the arguments.
        layout: The mesh and its data axis.
        arguments: The arguments of that function.
    """
    from ...._engine.call import trace

    ops = trace(mapped(virtual_mesh(dict(layout.mesh.shape))), *shapes_of(arguments))[0].body
    differing = frozenset().union(*_differing(ops)) & layout.others
    if differing:
        axis = min(differing)
        raise ShardingError(
            f"its gradient differs between the devices along {axis!r}",
            where="the loss",
            rule=f"Rows are split along {layout.axis!r}; along all other axes params and "
            "gradients are the same everywhere. A loss that computes a part of the model on "
            "each device there (tensor parallelism) is not data parallel.",
            remedy="compute the same on all of them; or a mesh whose only axis carries rows.",
        )


def shapes_of(tree: Any) -> Any:
    """Return the shapes and dtypes of arrays, without their shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _differing(ops: Any) -> list[frozenset[str]]:
    """Return, for each result, the axes along which it differs though declared replicated."""
    from ...._program import Join

    joins = {id(op.outs[0]): op for op in ops.ops if isinstance(op, Join)}

    def axes(join: Any) -> Any:
        return join.ins[0].axes & frozenset(join.replicated) if join else ()

    return [frozenset(a.name for a in axes(joins.get(id(out)))) for out in ops.outs]


def _names(state: Any) -> list[str]:
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def keep_statistics(old: Any, new: Any, axis: str, mode: str) -> Any:
    """Return the updated state, averaged over devices if each has its own."""

    def keep(old: Any, new: Any) -> Any:
        if new is old or mode == "batch":
            return new
        if jnp.issubdtype(new.dtype, jnp.inexact):
            return lax.pmean(new, axis)
        if jnp.issubdtype(new.dtype, jnp.integer):
            return lax.pmax(new, axis)
        return new

    return jax.tree.map(keep, old, new)


def _varies(name: str, layout: BatchLayout) -> ShardingError:
    return ShardingError(
        f"{name} differs between the devices along {layout.axis!r} after it",
        where="the loss",
        rule="Statistics of a shard are not those of the batch: the model would train "
        "differently on another number of devices.",
        remedy=f"name the axis in the layer, BatchNorm(..., axis_name={layout.axis!r}), or pass "
        "statistics='shard' if statistics per shard are intended.",
    )


def _coupling(updated: list[str], collective: str) -> str:
    """Return, as a clause, what couples the rows of a loss."""
    if updated:
        return f"it updates {updated[0]}"
    return f"it has {'an' if collective[0] in 'aeiou' else 'a'} {collective}"


def _padded(what: str, layout: BatchLayout) -> ShardingError:
    return ShardingError(
        f"{what}, and the batch does not divide evenly over {layout}",
        where="the loss",
        rule="The batch would have to be padded, and the padding would enter what the rows share.",
        remedy=f"batches of a multiple of {layout.parts} rows; drop or fill the last one.",
    )


def _split_further(what: str, layout: BatchLayout) -> ShardingError:
    remedy = f"a virtual mesh, mesh=sw.mesh({layout.axis}=n), which accumulates over n parts"
    if layout.virtual:
        sizes = {**layout.mesh.shape, layout.axis: layout.parts}
        axes = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        remedy = f"mesh=sw.mesh({axes}) with accumulate=1, which computes the same parts"
    return ShardingError(
        f"{what}, and accumulate={layout.accumulate} cuts the batch further",
        where="the loss",
        rule="Statistics would be computed over a part of the batch only.",
        remedy=f"{remedy} and has the statistics of the whole batch; or statistics='shard' if "
        "those of the parts are intended.",
    )

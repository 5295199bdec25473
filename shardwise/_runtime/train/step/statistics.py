"""State that a loss changes as it runs: batch statistics, and what may become of them.

The promise is training that equals one device's. It holds for the statistics of a `BatchNorm` when
they are those of the whole batch: the layer names the data axis, no part of the batch is taken by
itself, and no padding is among the rows. Where that is not so the step is refused, unless the user
says that statistics per shard are meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...._base.errors import ShardingError, UnsupportedError, explain_error
from ...._mesh import mesh as virtual_mesh
from .dependence import dependents
from .layout import Layout
from .part import Place

MODES = ("batch", "shard")


@dataclass(frozen=True)
class Statistics:
    """Whose statistics a loss is to have: those of the whole `batch`, or of each `shard`."""

    mode: str

    def __post_init__(self) -> None:
        if not (isinstance(self.mode, str) and self.mode in MODES):
            raise ShardingError(
                explain_error(
                    f"statistics is {self.mode!r}",
                    where="argument 'statistics'",
                    rule="Statistics are those of the whole 'batch', or of each 'shard'.",
                    remedy="statistics='batch'",
                )
            )

    def examine(
        self, loss: Any, layout: Layout, params: Any, state: Any, batch: Any, padded: bool
    ) -> None:
        """Refuse a loss whose result would depend on how the batch is cut."""
        whole = self.mode == "batch"
        split = layout.accumulate > 1
        if not (padded or (whole and (split or jax.tree.leaves(state)))):
            return
        found = _examine(loss, layout, params, state, batch, padded)
        if whole and found.varying:
            raise _varies(found.varying[0], layout)
        if padded and (found.mixed or found.meets):
            raise _padded(_deed(found.mixed, found.meets), layout)
        if whole and split and (found.changed or found.meets):
            raise _cut(_deed(found.changed, found.meets), layout)


@dataclass(frozen=True)
class Found:
    """What a loss does: state it changes, that of it which would depend on padding, state that then
    differs between devices, and where it has a collective over the data axis."""

    changed: list[str]
    mixed: list[str]
    varying: list[str]
    meets: str


def _examine(loss: Any, layout: Layout, params: Any, state: Any, batch: Any, padded: bool) -> Found:
    from ...._engine.call import trace
    from ...._jax.virtual import virtually
    from ...._program import collectives_in

    # Two devices tell what differs between devices; a mesh of one would hide it.
    sizes = dict(layout.mesh.shape)
    sizes[layout.axis] = max(2, layout.devices)
    mesh = virtual_mesh(sizes)
    share = jax.tree.leaves(batch)[0].shape[0] // layout.parts
    rows = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((share * sizes[layout.axis], *x.shape[1:]), x.dtype), batch
    )
    unchanged: list[bool] = []

    def body(params: Any, state: Any, batch: Any, key: Any) -> Any:
        place = Place(key, lax.axis_index(layout.axis), share)
        output, new = loss(params, state, batch, place)
        old = jax.tree.leaves(state)
        unchanged[:] = [a is b for a, b in zip(old, jax.tree.leaves(new), strict=True)]
        # The output is kept, so that its collectives are not dropped as dead.
        arrays = [x for x in jax.tree.leaves(output) if hasattr(x, "dtype")]
        return jax.tree.leaves(new), [jnp.asarray(x)[None] for x in arrays]

    def program(params: Any, state: Any, batch: Any, key: Any) -> Any:
        specs = P(), P(), P(layout.axis), P()
        out = P(), P(layout.axis)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)(
            params, state, batch, key
        )

    shapes = shapes_of((params, state))
    given = rows, jax.eval_shape(lambda: jax.random.key(0))  # a row has a key, and so has padding
    try:
        with virtually(mesh):  # a program of its own, whatever is traced around it
            ops = trace(program, *shapes, *given)[0].body
            mixing = [False] * len(unchanged)
            if padded and not all(unchanged):
                mixing = dependents(lambda given, p, s: program(p, s, *given)[0], given, *shapes)
    except UnsupportedError as error:
        raise UnsupportedError(
            explain_error(
                f"whether its statistics are those of the whole batch cannot be told: {error}",
                where="the loss",
                remedy="batches that divide evenly, and statistics='shard' if you have made sure "
                "of it.",
            )
        ) from error
    names = _names(state)
    changed = [name for name, same in zip(names, unchanged, strict=True) if not same]
    varying = [name for name, axes in zip(names, _differing(ops), strict=False) if axes]
    meets = [op for op in collectives_in(ops.ops) if layout.axis in [a.name for a in op.axes]]
    mixed = [name for name, does in zip(names, mixing, strict=True) if does and name in changed]
    return Found(changed, mixed, varying, str(meets[0]) if meets else "")


def refuse_varying(mapped: Any, layout: Layout, arguments: Any) -> None:
    """Refuse a gradient that is not the same along the axes which do not carry rows.

    Args:
        mapped: From a mesh to the gradient as a function of the arguments.
        layout: The mesh and its data axis.
        arguments: What it is called with.
    """
    from ...._engine.call import trace

    ops = trace(mapped(virtual_mesh(dict(layout.mesh.shape))), *shapes_of(arguments))[0].body
    differing = frozenset().union(*_differing(ops)) & layout.others
    if differing:
        axis = min(differing)
        raise ShardingError(
            explain_error(
                f"its gradient differs between the devices along {axis!r}",
                where="the loss",
                rule=f"Rows are split along {layout.axis!r}; along all other axes params and "
                "gradients are the same everywhere. A loss that computes a part of the model on "
                "each device there (tensor parallelism) is not data parallel.",
                remedy="compute the same on all of them; or a mesh whose only axis carries rows.",
            )
        )


def shapes_of(tree: Any) -> Any:
    """Shapes and dtypes alone, wherever the arrays are."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def _differing(ops: Any) -> list[frozenset[str]]:
    """For each result, the axes along which it differs though it is said to be the same."""
    from ...._program import Join

    joins = {id(op.outs[0]): op for op in ops.ops if isinstance(op, Join)}

    def axes(join: Any) -> Any:
        return join.ins[0].axes & frozenset(join.replicated) if join else ()

    return [frozenset(a.name for a in axes(joins.get(id(out)))) for out in ops.outs]


def _names(state: Any) -> list[str]:
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]


def keep_statistics(old: Any, new: Any, axis: str, mode: str) -> Any:
    """The state that leaves the body, the same on every device."""

    def keep(old: Any, new: Any) -> Any:
        if new is old or mode == "batch":
            return new
        if jnp.issubdtype(new.dtype, jnp.inexact):
            return lax.pmean(new, axis)
        if jnp.issubdtype(new.dtype, jnp.integer):
            return lax.pmax(new, axis)
        return new

    return jax.tree.map(keep, old, new)


def _varies(name: str, layout: Layout) -> ShardingError:
    return ShardingError(
        explain_error(
            f"{name} comes out of it different on every device along {layout.axis!r}",
            where="the loss",
            rule="Statistics of a shard are not those of the batch: the model would train "
            "differently on another number of devices.",
            remedy=f"name the axis in the layer, BatchNorm(..., axis_name={layout.axis!r}), or say "
            "statistics='shard' if statistics per shard are meant.",
        )
    )


def _deed(updated: list[str], meets: str) -> str:
    """What a loss does that the rows share."""
    if updated:
        return f"it updates {updated[0]}"
    return f"it has {'an' if meets[0] in 'aeiou' else 'a'} {meets}"


def _padded(what: str, layout: Layout) -> ShardingError:
    return ShardingError(
        explain_error(
            f"{what}, and the batch does not divide evenly over {layout}",
            where="the loss",
            rule="The batch would have to be padded, and the padding would enter what the "
            "rows share.",
            remedy=f"batches of a multiple of {layout.parts} rows; drop or fill the last one.",
        )
    )


def _cut(what: str, layout: Layout) -> ShardingError:
    remedy = f"a virtual mesh, mesh=sw.mesh({layout.axis}=n), which accumulates over n parts"
    if layout.virtual:
        sizes = {**layout.mesh.shape, layout.axis: layout.parts}
        wider = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        remedy = f"mesh=sw.mesh({wider}) with accumulate=1, which computes the same parts"
    return ShardingError(
        explain_error(
            f"{what}, and accumulate={layout.accumulate} cuts the batch further",
            where="the loss",
            rule="What the rows share would be taken over a part of the batch only.",
            remedy=f"{remedy} and has the statistics of the whole batch; or statistics='shard' if "
            "those of the parts are meant.",
        )
    )

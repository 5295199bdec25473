"""The state of `fn`: flattened once, placed once, passed as an argument.

It may be any pytree, such as Linen variables. NNX modules are split into arrays and graph; inside
the step they are merged and switched to evaluation mode, which does not change the caller's
modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .... import _jax
from ...._base.boxes import boxes
from ...._base.errors import (
    ArgumentError,
    ShardingError,
    ShardwiseError,
    UnsupportedError,
)
from ..lanes import Lanes

_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True)
class State:
    """A state on the devices.

    Attributes:
        arrays: Its arrays.
        rebuild: A function from those arrays, or traced ones, to the argument of `fn`.
        static: The rest of it, as a key of a cache; hashable if the state is.
    """

    arrays: list[jax.Array]
    rebuild: Callable[[list[Any]], Any]
    static: tuple[Any, ...]


def place(state: Any, lanes: Lanes) -> State:
    """Flatten a state and put its arrays on every device; keep an existing sharding."""
    graph = None
    _refuse_boxes(state, lanes)
    modules = _has_modules(state)
    if modules:
        from flax import nnx

        graph, state = nnx.split(state)
    leaves, structure = jax.tree.flatten(state)
    if any(map(_jax.is_traced, leaves)):
        raise ShardwiseError(
            "it has tracers: evaluate was called inside a traced function.",
            where="argument 'state'",
            rule="evaluate compiles its own step and reads data while it runs, so it cannot be "
            "part "
            "of a jitted function.",
            remedy="call it outside jax.jit.",
        )
    where = [k for k, leaf in enumerate(leaves) if isinstance(leaf, _NUMBERS)]
    rest = {k: leaf for k, leaf in enumerate(leaves) if not isinstance(leaf, _NUMBERS)}
    shardings = [_sharding(leaves[k], lanes) for k in where]
    local = [_local(leaves[k], sharding) for k, sharding in zip(where, shardings, strict=True)]
    try:
        arrays = jax.device_put(local, shardings) if where else []
    except (TypeError, OverflowError) as error:
        raise ArgumentError(
            f"{error}",
            where="argument 'state'",
            rule="The arrays of a state have dtypes that JAX supports.",
        ) from error

    def rebuild(arrays: list[Any]) -> Any:
        filled = rest | dict(zip(where, arrays, strict=True))
        tree = jax.tree.unflatten(structure, [filled[k] for k in range(len(leaves))])
        return _merge_modules(graph, tree) if modules else tree

    # Also as text: structures of different dataclasses can compare as equal.
    return State(arrays, rebuild, (structure, str(structure), graph, tuple(rest.items())))


def _refuse_boxes(state: Any, lanes: Lanes) -> None:
    """Raise if a Linen variable is partitioned over an axis that the lanes do not have."""
    allowed = set(lanes.mesh.axis_names) - {lanes.axis}
    for path, names in boxes(state):
        if not allowed.issuperset(jax.tree.leaves(names)):
            choices = " and ".join(sorted(map(repr, allowed))) or "other axes, of which it has none"
            raise ShardingError(
                f"{path} is annotated as split by {names}",
                where="argument 'state'",
                rule=f"Steps are distributed along {lanes.axis!r}, and the state can be split "
                f"over {choices}.",
                remedy="sw.evaluate(fn, nn.unbox(state), data)",
            )


def _has_modules(state: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False

    def is_module(x: Any) -> bool:
        return isinstance(x, nnx.Module | nnx.Pytree)

    return any(map(is_module, jax.tree.leaves(state, is_leaf=is_module)))


def _merge_modules(graph: Any, state: Any) -> Any:
    from flax import nnx

    merged = nnx.merge(graph, state)

    def is_module(x: Any) -> bool:
        return isinstance(x, nnx.Module)

    for leaf in jax.tree.leaves(merged, is_leaf=is_module):
        if is_module(leaf):
            leaf.eval()
    return merged


def _local(leaf: Any, sharding: NamedSharding) -> Any:
    """Return the part of an array on this process; raise if it needs other parts."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    parts = {shard.device: shard.data for shard in leaf.addressable_shards}
    needed = sharding.addressable_devices_indices_map(leaf.shape)
    available = leaf.sharding.addressable_devices_indices_map(leaf.shape)
    if any(available.get(device) != index for device, index in needed.items()):
        raise UnsupportedError(
            f"an array {leaf.dtype}{list(leaf.shape)} is split over the processes.",
            where="argument 'state'",
            rule="Each process computes whole steps, and needs the whole state for them.",
            remedy="jax.experimental.multihost_utils.process_allgather(state, tiled=True), or "
            "a mesh that splits it within each process.",
        )
    arrays = [parts[device] for device in needed]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)


def _sharding(leaf: Any, lanes: Lanes) -> NamedSharding:
    """Return a replicated sharding, or that of an array already split over other axes of the
    mesh."""
    sharding = getattr(leaf, "sharding", None)
    mesh = lanes.mesh
    if (
        isinstance(sharding, NamedSharding)
        and sharding.mesh.axis_names == mesh.axis_names
        and {*mesh.devices.flat} <= sharding.device_set
        and _rows(sharding.mesh, lanes) == _rows(mesh, lanes)
    ):
        return NamedSharding(mesh, PartitionSpec(*(_without(e, lanes.axis) for e in sharding.spec)))
    return NamedSharding(mesh, PartitionSpec())


def _rows(mesh: Any, lanes: Lanes) -> Any:
    """Return the devices of this process, position by position along the data axis."""
    if getattr(mesh, "devices", None) is None:
        return None
    local = {*lanes.mesh.devices.flat}
    by_lane = np.moveaxis(mesh.devices, mesh.axis_names.index(lanes.axis), 0)
    flat = by_lane.reshape(len(by_lane), -1).tolist()
    return [lane for lane in flat if {*lane} <= local]


def _without(entry: Any, axis: str) -> Any:
    if isinstance(entry, tuple):
        return tuple(name for name in entry if name != axis) or None
    return None if entry == axis else entry

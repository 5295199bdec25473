"""The devices as lanes: one lane for each position along the data axis of the mesh.

Every lane runs the same program on its own step; lanes do not communicate. A mesh with further axes
has several devices in a lane. They get the same step, and XLA splits the work within the lane as
the state is sharded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..._base.errors import ShardingError, UnsupportedError
from ..._mesh import one_mesh
from ..hosts.find import require_joined

_COPIERS = 16


@dataclass(frozen=True)
class Lanes:
    """A mesh whose data axis distributes the steps.

    Attributes:
        mesh: The mesh, all of its axes Auto; of several processes, the part of this one.
        axis: The name of its data axis.
        devices: The devices of each lane.
        processes: The number of processes.
        before: The number of lanes of the processes before this one.
        total: The number of lanes of all processes.
    """

    mesh: Mesh
    axis: str
    devices: tuple[tuple[Any, ...], ...]
    processes: int = 1
    before: int = 0
    total: int = 0

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def split(self) -> NamedSharding:
        """The sharding of an array with one part per lane."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def first(self) -> Mesh:
        """The mesh of the first lane."""
        place = self.mesh.axis_names.index(self.axis)
        devices = self.mesh.devices.take([0], axis=place)
        return Mesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)

    def depth(self, step_bytes: int) -> int:
        """Return the number of steps in flight per lane, from reading to result.

        Two for each thread that copies to an accelerator, if they fit into 2 GiB, and at least
        eight, so that copying and computing overlap. A CPU device needs no copy.
        """
        if self.on_host:
            return 4
        return max(8, min(2 * _COPIERS, (2 << 30) // max(step_bytes, 1)))

    @property
    def transfer_threads(self) -> int:
        """Threads that copy to the devices.

        One copies 4 to 8 GB/s from ordinary memory to an H200; sixteen reach 35 to 45, and more do
        not help. Where computing takes longer they wait.
        """
        if self.on_host:
            return 2
        return min(_COPIERS * len(self), max(4, os.cpu_count() or 4))

    @property
    def alone(self) -> bool:
        """Whether there is one device only."""
        return self.mesh.devices.size == 1

    @property
    def on_host(self) -> bool:
        """Whether the devices use host memory."""
        return self.mesh.devices.flat[0].platform == "cpu"

    def join(self, parts: list[list[jax.Array]]) -> jax.Array:
        """Join arrays that are already on the devices into one, without copies.

        Args:
            parts: For each lane, the same array on each of its devices.
        """
        rows, *dims = parts[0][0].shape
        shape = (rows * len(parts), *dims)
        arrays = [array for part in parts for array in part]
        return jax.make_array_from_single_device_arrays(shape, self.split, arrays)


def find_lanes(mesh: Any = None) -> Lanes:
    """Return the lanes of a mesh, by default of all devices of all processes.

    Args:
        mesh: A mesh; its data axis is the one named `data`, or else the first. A virtual mesh
            stands for all devices, since the number of lanes does not change the result.
    """
    if mesh is not None:
        mesh = one_mesh(mesh)
    if isinstance(mesh, AbstractMesh):
        _check_virtual(mesh)
        mesh = None
    if mesh is None:
        require_joined("sw.evaluate")
        mesh = Mesh(np.array(jax.devices()), ("data",))
    axis = data_axis(mesh)
    place = mesh.axis_names.index(axis)
    owners = _owners(np.moveaxis(mesh.devices, place, 0))
    local = [k for k, owner in enumerate(owners) if owner == jax.process_index()]
    mesh = Mesh(
        mesh.devices.take(local, axis=place),
        mesh.axis_names,
        axis_types=(AxisType.Auto,) * mesh.devices.ndim,
    )
    by_lane = np.moveaxis(mesh.devices, place, 0)
    devices = tuple(map(tuple, by_lane.reshape(len(by_lane), -1)))
    before = sum(owner < jax.process_index() for owner in owners)
    return Lanes(mesh, axis, devices, len({*owners}), before, len(owners))


def data_axis(mesh: Mesh | AbstractMesh) -> str:
    return "data" if "data" in mesh.axis_names else str(mesh.axis_names[0])


def _check_virtual(mesh: AbstractMesh) -> None:
    other_axes = {name: n for name, n in mesh.shape.items() if name != data_axis(mesh) and n > 1}
    if other_axes:
        raise UnsupportedError(
            f"a virtual mesh with the axes {other_axes} beside its data axis.",
            where="argument 'mesh'",
            rule="evaluate accepts a virtual mesh only with a data axis.",
            remedy="use a real mesh, or remove the other axes.",
        )


def _owners(by_lane: np.ndarray) -> list[int]:
    """Return the process of each lane; raise if a lane has several, or a process has none."""
    owners = [{device.process_index for device in np.ravel(lane)} for lane in by_lane]
    divided = next((sorted(owner) for owner in owners if len(owner) > 1), None)
    if divided is not None:
        raise UnsupportedError(
            f"processes {divided} share one position along its data axis.",
            where="argument 'mesh'",
            rule="A step is computed by the devices of one process.",
            remedy="put the other axes of the mesh within the machines, the data axis across.",
        )
    flat = [owner for lane in owners for owner in lane]
    processes = {*range(jax.process_count())}
    left_out = sorted(processes - {*flat})
    if left_out and {*flat} != {jax.process_index()}:
        raise ShardingError(
            f"it has no device of process {', '.join(map(str, left_out))}.",
            where="argument 'mesh'",
            rule="All processes take part in an evaluation, or each has its own mesh.",
            remedy="a mesh over jax.devices(), or one over jax.local_devices() in each process.",
        )
    return flat

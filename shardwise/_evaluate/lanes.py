"""The devices as lanes: one lane for each position along the data axis of the mesh.

Every lane runs the same program on its own step; lanes never speak to each other. A mesh with
further axes has several devices in a lane. They are given the same step, and XLA splits the work
within the lane the way the state is split.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .._errors import ShardingError, UnsupportedError, explain_error

_COPIERS = 16


@dataclass(frozen=True)
class Lanes:
    """A mesh whose data axis deals out the steps.

    Attributes:
        mesh: The mesh, all of its axes Auto.
        axis: The name of its data axis.
        devices: The devices of each lane.
    """

    mesh: Mesh
    axis: str
    devices: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def split(self) -> NamedSharding:
        """The sharding of an array with one part per lane."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    @property
    def first(self) -> Mesh:
        """The mesh as it would be with one lane."""
        place = self.mesh.axis_names.index(self.axis)
        devices = self.mesh.devices.take([0], axis=place)
        return Mesh(devices, self.mesh.axis_names, axis_types=self.mesh.axis_types)

    def depth(self, step_bytes: int) -> int:
        """Steps in flight per lane, from reading to result.

        Two for each thread that copies to an accelerator, as far as they fit into 2 GiB; eight in
        any case, so that copying and computing overlap. To a CPU device there is no way: its
        memory is the host's.
        """
        if self._on_host:
            return 4
        return max(8, min(2 * _COPIERS, (2 << 30) // max(step_bytes, 1)))

    @property
    def transfer_threads(self) -> int:
        """Threads that copy to the devices.

        One copies 4 to 8 GB/s from ordinary memory to an H200; sixteen reach 35 to 45, and more do
        not help. Where computing takes longer they wait.
        """
        if self._on_host:
            return 2
        return min(_COPIERS * len(self), max(4, os.cpu_count() or 4))

    @property
    def _on_host(self) -> bool:
        return self.mesh.devices.flat[0].platform == "cpu"

    def join(self, parts: list[list[jax.Array]]) -> jax.Array:
        """Put arrays that are already on the devices together, without moving anything.

        Args:
            parts: For each lane, the same array on each of its devices.
        """
        rows, *rest = parts[0][0].shape
        shape = (rows * len(parts), *rest)
        arrays = [array for part in parts for array in part]
        return jax.make_array_from_single_device_arrays(shape, self.split, arrays)


def find_lanes(mesh: Any = None) -> Lanes:
    """Make lanes of a mesh, or of all local devices.

    Args:
        mesh: A mesh; its data axis is the one named `data`, or else the first. A virtual mesh
            stands for the local devices, since the number of lanes does not change the result.
    """
    if isinstance(mesh, AbstractMesh):
        _check_virtual(mesh)
        mesh = None
    if mesh is None:
        mesh = Mesh(np.array(jax.local_devices()), ("data",))
    if not isinstance(mesh, Mesh) or not mesh.axis_names:
        raise ShardingError(
            explain_error(
                f"got {type(mesh).__name__}.",
                where="argument 'mesh'",
                rule="It is a jax.sharding.Mesh with at least one axis.",
                remedy="jax.make_mesh((jax.device_count(),), ('data',)), or leave it out.",
            )
        )
    _check_local(mesh)
    axis = data_axis(mesh)
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)
    by_lane = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0)
    devices = tuple(map(tuple, by_lane.reshape(len(by_lane), -1)))
    return Lanes(mesh, axis, devices)


def data_axis(mesh: Mesh | AbstractMesh) -> str:
    return "data" if "data" in mesh.axis_names else str(mesh.axis_names[0])


def _check_virtual(mesh: AbstractMesh) -> None:
    others = {name: n for name, n in mesh.shape.items() if name != data_axis(mesh) and n > 1}
    if others:
        raise UnsupportedError(
            explain_error(
                f"a virtual mesh with the axes {others} beside its data axis.",
                where="argument 'mesh'",
                rule="A virtual mesh can only be run here if all it splits is the data.",
                remedy="give a real mesh, or leave the other axes out.",
            )
        )


def _check_local(mesh: Mesh) -> None:
    elsewhere = [d for d in mesh.devices.flat if d.process_index != jax.process_index()]
    if elsewhere:
        raise UnsupportedError(
            explain_error(
                f"{len(elsewhere)} of the mesh's {mesh.devices.size} devices belong to other "
                "processes.",
                where="argument 'mesh'",
                rule="One call of evaluate runs on the devices of its own process, so far.",
                remedy="give each process its own part of the data and a mesh of "
                "jax.local_devices().",
            )
        )

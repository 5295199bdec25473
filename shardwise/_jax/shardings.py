"""Shardings in a program, while it is traced for a virtual mesh.

JAX asks for devices in some of these places although only names and sizes are needed. While a
simulated program is traced, a `PartitionSpec` for `jit`, `device_put` or a `ShapeDtypeStruct`
refers to the ambient mesh, virtual or not. A sharding for a function that creates an array
(`jnp.zeros(shape, device=sharding)`, `lax.full(..., sharding=sharding)`), which JAX makes part of
the type if it has no devices, is part of the type only along Explicit axes: along Auto ones it only
affects placement, as with devices, and no values.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from jax._src import api as _api
from jax._src import core as _core
from jax._src import mesh as _mesh
from jax._src import pjit as _pjit
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax._src.numpy import util as _numpy
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from .patches import Patch

IsTracing = Callable[[], bool]
"""Returns whether a simulated program is being traced."""


def placing_patches(traced: IsTracing) -> list[Patch]:
    """Return the patches that let JAX use the mesh around a simulated program."""

    def ambient() -> AbstractMesh | None:
        """Return the ambient mesh if JAX would find none because it has no devices."""
        if not traced() or not _mesh.get_concrete_mesh().empty:
            return None
        mesh = _mesh.get_abstract_mesh()
        # In a body, JAX would use the whole concrete mesh, without manual axes.
        manual = dict.fromkeys(mesh.manual_axes, AxisType.Auto)
        return None if mesh.empty else mesh.update_axis_types(manual)

    return [
        Patch(_pjit, "_create_sharding_for_array", partial(_of_jit, ambient=ambient)),
        Patch(_api, "pspec_to_sharding", partial(_sharding, ambient=ambient)),
        Patch(_core.ShapeDtypeStruct, "sharding", partial(_described, ambient=ambient)),
        Patch(_numpy, "canonicalize_device_to_sharding", partial(_of_device, traced=traced)),
        Patch(_lax, "broadcast", partial(_filled, traced=traced)),
        Patch(_pjit, "_pjit_batcher_for_sharding", partial(_batched, traced=traced)),
    ]


AmbientMesh = Callable[[], "AbstractMesh | None"]


def _of_jit(original: Callable[..., Any], ambient: AmbientMesh) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_sharding(jit_mesh: Any, spec: Any, name: str, api_name: str) -> Any:
        mesh = ambient() if api_name == "jit" and isinstance(spec, PartitionSpec) else None
        if mesh is None:
            return original(jit_mesh, spec, name, api_name)
        return NamedSharding(mesh, spec)

    return create_sharding


def _sharding(original: Callable[..., Any], ambient: AmbientMesh) -> Callable[..., Any]:
    @functools.wraps(original)
    def pspec_to_sharding(name: str, spec: Any) -> Any:
        mesh = ambient() if isinstance(spec, PartitionSpec) else None
        return original(name, spec) if mesh is None else NamedSharding(mesh, spec)

    return pspec_to_sharding


def _described(original: property, ambient: AmbientMesh) -> property:
    def sharding(self: Any) -> Any:
        mesh = ambient() if isinstance(self._sharding, PartitionSpec) else None
        return original.__get__(self) if mesh is None else NamedSharding(mesh, self._sharding)

    return property(sharding)


def _of_device(original: Callable[..., Any], traced: IsTracing) -> Callable[..., Any]:
    """Replace the conversion of `device=` in the functions of `jax.numpy` that create arrays."""

    @functools.wraps(original)
    def canonicalize_device_to_sharding(device: Any) -> Any:
        return original(_typed(device) if traced() else device)

    return canonicalize_device_to_sharding


def _filled(original: Callable[..., Any], traced: IsTracing) -> Callable[..., Any]:
    """Replace `sharding=` of `lax.full` and `lax.full_like`, which broadcast a scalar."""
    full = inspect.unwrap(_lax.full).__code__

    @functools.wraps(original)
    def broadcast(*args: Any, out_sharding: Any = None) -> Any:
        if out_sharding is not None and traced() and sys._getframe(1).f_code is full:
            out_sharding = _typed(out_sharding)
        return original(*args, out_sharding=out_sharding)

    return broadcast


def _batched(original: Callable[..., Any], traced: IsTracing) -> Callable[..., Any]:
    """Replace the sharding under `vmap`, which needs no devices if all axes are Explicit."""

    @functools.wraps(original)
    def batcher(sharding: Any, dim: int, spmd_axis_name: Any, *rest: Any) -> Any:
        virtual = isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh)
        if traced() and virtual and spmd_axis_name is None and sharding.mesh.are_all_axes_explicit:
            return sharding.update(spec=_pxla.batch_spec(sharding.spec, dim, None))
        return original(sharding, dim, spmd_axis_name, *rest)

    return batcher


def _typed(sharding: Any) -> Any:
    """Return the part of a virtual sharding that is part of a type; any other unchanged.

    A sharding on real devices is left to JAX, which may cache this trace and run it on them.
    """
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    ambient = _mesh.get_abstract_mesh()
    if AxisType.Explicit not in sharding.mesh.axis_types or ambient.manual_axes:
        return None
    return sharding.update(spec=_core.modify_spec_for_auto_manual(sharding.spec, sharding.mesh))

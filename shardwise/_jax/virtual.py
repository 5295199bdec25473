"""Run what JAX supports only eagerly, or only with devices, while tracing for a virtual mesh.

`under` sets the ambient mesh of a trace. Within `virtually`, `jax.set_mesh` takes a virtual mesh
and works during a trace, and `jax.pmap` runs over as many virtual devices as its arguments require
if there are too few real ones. Specs and shardings that a program passes to `jit`, `device_put` or
`jnp.zeros` need no devices (`shardings`). `jax.device_count`, which counts the devices of this
machine, raises an error if the mesh has another number of them (`device_counts`). After the trace
all patches are removed (`patches`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
from jax._src import config as _config
from jax._src import mesh as _mesh
from jax._src import pmap as _pmap
from jax._src import shard_map as _shard_map
from jax._src import sharding_impls as _shardings
from jax._src import source_info_util as _source
from jax._src.interpreters import partial_eval as _partial_eval
from jax.sharding import AbstractMesh, AxisType, Mesh

from .device_counts import counting_patches, elsewhere
from .frozen_meshes import note_ambient, unfreeze_meshes
from .messages import UNMAPPED, RefusedError
from .patches import Patch, Patches
from .shardings import placing_patches

_ABSTRACT: Any = getattr(_mesh, "abstract_mesh_context_manager", None) or getattr(
    _config, "abstract_mesh_context_manager", None
)
_TRACE: Any = _partial_eval.DynamicJaxprTrace
_DEVICES: Any = getattr(_mesh, "device_context", None) or getattr(_config, "device_context", None)


@contextlib.contextmanager
def under(mesh: AbstractMesh | None) -> Iterator[None]:
    """Return a context with this ambient mesh, whatever mesh is around it; None is no mesh."""
    abstract = _ABSTRACT.swap_local(_mesh.empty_abstract_mesh if mesh is None else mesh)
    devices = _DEVICES.swap_local(_mesh.empty_concrete_mesh)
    try:
        yield
    finally:
        _ABSTRACT.set_local(abstract)
        _DEVICES.set_local(devices)


_VIRTUAL: contextvars.ContextVar[TraceNotes | None] = contextvars.ContextVar(
    "virtual", default=None
)


@dataclasses.dataclass(frozen=True)
class Mapped:
    """A call of `shard_map`: its source, and the shapes of its results."""

    source: Any
    shapes: tuple[tuple[int, ...], ...]


@dataclasses.dataclass
class TraceNotes:
    """Facts about a trace that are not in the jaxpr."""

    mesh: Mesh | AbstractMesh | None = None
    """The mesh that the program is traced for."""
    inferred: AbstractMesh | None = None
    """The virtual mesh of a `shard_map` that takes its specs from the types of its arguments."""
    mapped: list[Mapped] = dataclasses.field(default_factory=list)
    """The calls of `shard_map`, in order."""

    @property
    def size(self) -> int | None:
        """Return the number of devices of that mesh."""
        return None if self.mesh is None else self.mesh.size


@contextlib.contextmanager
def virtually(mesh: Mesh | AbstractMesh | None) -> Iterator[TraceNotes]:
    """Return a context in which programs may set virtual meshes and map over virtual devices."""
    notes = TraceNotes(mesh)
    token = _VIRTUAL.set(notes)
    abstract, devices = _ABSTRACT.get_local(), _DEVICES.get_local()
    try:
        with _PATCHES.installed(), unfreeze_meshes(), elsewhere(notes.size):
            yield notes
    finally:
        _VIRTUAL.reset(token)
        # `jax.set_mesh` without `with` lasts; what a program sets while traced does not.
        _ABSTRACT.set_local(abstract)
        _DEVICES.set_local(devices)


def _patches() -> list[Patch]:
    """Return the patches that check whether a simulated program is being traced."""
    return [
        Patch(_shardings.set_mesh, "__init__", _set_mesh),
        Patch(_pmap, "_get_mesh_devices", _mesh_devices),
        Patch(_pmap, "_cached_shard_map", _mapped),
        Patch(_shard_map, "_shmap_checks", _checks),
        Patch(_TRACE, "process_shard_map", _noted),
        *placing_patches(lambda: _VIRTUAL.get() is not None),
        *counting_patches(_size),
    ]


_PATCHES = Patches(_patches)


def _size() -> int | None:
    notes = _VIRTUAL.get()
    return None if notes is None else notes.size


def _set_mesh(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, mesh: Any) -> None:
        if not _VIRTUAL.get() or not isinstance(mesh, Mesh | AbstractMesh):
            original(self, mesh)
            return
        abstract = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
        self.prev_abstract_mesh = _ABSTRACT.swap_local(abstract)
        self.prev_mesh = _DEVICES.swap_local(_mesh.empty_concrete_mesh)

    return init


def _checks(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def checks(mesh: Any, axis_names: Any, in_specs: Any, *rest: Any) -> Any:
        note_ambient(mesh, axis_names)
        used, names = original(mesh, axis_names, in_specs, *rest)
        notes = _VIRTUAL.get()
        if notes is not None:
            _refuse_other_mesh(used, notes)
        virtual = isinstance(used, AbstractMesh) and _mesh.get_concrete_mesh().empty
        if notes is not None and in_specs is _shard_map.Infer and virtual:
            notes.inferred = used
        return used, names

    return checks


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def process(*args: Any, **params: Any) -> Any:
        outs = original(*args, **params)
        notes = _VIRTUAL.get()
        if notes is not None:
            shapes = tuple(tuple(out.shape) for out in getattr(outs, "vals", outs))
            notes.mapped.append(Mapped(_source.current(), shapes))
        return outs

    return process


def _refuse_other_mesh(used: Mesh | AbstractMesh, seen: TraceNotes) -> None:
    """Raise for a `shard_map` on its own mesh, if the program is traced for another."""
    if seen.mesh is None or used.size == seen.size:
        return
    if any(name in seen.mesh.axis_names for name in used.axis_names):
        raise RefusedError(
            f"this shard_map runs on a mesh of its own, {dict(used.shape)}, and not on the one "
            f"that the program is to run on, {dict(seen.mesh.shape)}",
            "A program gets the mesh that it runs on as an argument.",
            "jax.shard_map(body, mesh=mesh, ...), with the mesh that is passed; or, for a program "
            "on a mesh of its own, leave mesh= out (simulate, explain and inspect do without).",
        )


# --- pmap


class _Count(int):
    """A number of virtual devices, in place of a list of devices."""


def _mesh_devices(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def devices(own: Any, backend: Any, mapped: int, size: int | None, *rest: Any) -> Any:
        if _VIRTUAL.get() and size in (None, mapped):
            return _Count(mapped)
        return original(own, backend, mapped, size, *rest)

    return devices


def _mapped(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cached(
        fun: Any,
        in_tree: Any,
        in_axes: Any,
        out_axes: Any,
        out_tree: Any,
        donated: Any,
        devices: Any,
        axis_name: Any,
    ) -> Any:
        if not isinstance(devices, _Count):
            return original(fun, in_tree, in_axes, out_axes, out_tree, donated, devices, axis_name)
        _refuse_other_size(axis_name, int(devices))
        mesh = AbstractMesh((int(devices),), (axis_name,), axis_types=(AxisType.Auto,))
        axes_tree = jax.tree.unflatten(out_tree, list(out_axes))
        return SimpleNamespace(jitted_f=jax.jit(_over(mesh, fun, in_tree, in_axes, axes_tree)))

    return cached


def _refuse_other_size(name: Any, count: int) -> None:
    """Raise for a `pmap` over an axis that the ambient mesh has with another size."""
    ambient = jax.sharding.get_abstract_mesh()
    size = ambient.shape.get(name, count)
    if size != count and AxisType.Manual not in ambient.axis_types:  # nested: an error below
        raise RefusedError(
            f"this pmap maps over {count} parts along {name!r}, and the mesh has {size} devices "
            "along it",
            "A pmap has no mesh: it runs on as many devices as its arguments have parts.",
            "leave mesh= out; or jax.shard_map in place of pmap, for a program that runs on any "
            "number of devices.",
        )


def _over(mesh: AbstractMesh, fun: Any, in_tree: Any, in_axes: Any, out_axes: Any) -> Any:
    """Map `fun` over a mesh of one axis: outside it has the mapped dimension, inside it does
    not."""
    (name,) = mesh.axis_names

    def refuse_uneven(flat: tuple[Any, ...]) -> None:
        mapped = [(x, axis) for x, axis in zip(flat, in_axes, strict=True) if axis is not None]
        if any(axis < 0 for _, axis in mapped):
            raise RefusedError(
                "in_axes of this pmap counts dimensions from the end",
                "JAX counts them from the first in a pmap.",
                "in_axes=0 for the first dimension, 1 for the second.",
            )
        if any(x.ndim <= axis for x, axis in mapped):
            raise RefusedError(*UNMAPPED)
        sizes = [x.shape[axis] for x, axis in mapped]
        if len({*sizes}) > 1:
            raise RefusedError(
                f"this pmap maps over arrays of {', '.join(map(str, dict.fromkeys(sizes)))} parts",
                "There is one part for each device, in every array that is mapped.",
                "give them the same size along the mapped dimension, or say in_axes=(0, None) of "
                "what every device takes whole.",
            )

    def spec(axis: int | None) -> Any:
        return jax.P() if axis is None else jax.P(*[None] * axis, name)

    def none(x: Any) -> bool:
        return x is None

    def per_device(*flat: Any) -> Any:
        parts = [
            x if axis is None else jax.lax.squeeze(x, [axis])
            for x, axis in zip(flat, in_axes, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(in_tree, parts)
        out = fun.call_wrapped(*args, **kwargs)

        def widen(axis: int | None, part: Any) -> Any:
            if axis is None:
                return part
            return jax.tree.map(lambda x: jax.lax.expand_dims(x, [axis]), part)

        return jax.tree.map(widen, out_axes, out, is_leaf=none)

    over_devices = jax.shard_map(
        per_device,
        mesh=mesh,
        in_specs=tuple(map(spec, in_axes)),
        out_specs=jax.tree.map(spec, out_axes, is_leaf=none),
        check_vma=False,
    )

    def alone(*flat: Any) -> Any:
        ambient = jax.sharding.get_abstract_mesh()
        if AxisType.Manual in ambient.axis_types:
            raise RefusedError(
                "this pmap stands inside another pmap, or inside a shard_map",
                "JAX maps over devices once.",
                "jax.vmap for the inner one; or one jax.shard_map over a mesh of two axes.",
            )
        refuse_uneven(flat)
        with under(None):  # pmap knows of no mesh around it
            return over_devices(*flat)

    return alone

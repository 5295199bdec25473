"""Support, while tracing for a virtual mesh, what JAX supports only eagerly or with devices.

`under` sets the ambient mesh of a trace. Within `virtually`, `jax.set_mesh` takes a virtual mesh
and works during a trace. Specs and shardings that a program passes to `jit`, `device_put` or
`jnp.zeros` need no devices (`shardings`). `jax.device_count`, which counts the devices of this
machine, raises an error if the mesh has another number of them (`device_counts`). After the trace
all patches are removed (`patches`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax._src import config as _config
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src import sharding_impls as _shardings
from jax._src import source_info_util as _source
from jax._src.interpreters import partial_eval as _partial_eval
from jax.sharding import AbstractMesh, Mesh

from .device_counts import counting_patches, elsewhere
from .frozen_meshes import note_ambient, unfreeze_meshes
from .messages import RefusedError
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
    lenient: bool = False
    """Whether `check_vma` is ignored."""
    last: int | None = None
    """The number of the call of `shard_map` at which the program ends."""

    @property
    def size(self) -> int | None:
        """Return the number of devices of that mesh."""
        return None if self.mesh is None else self.mesh.size


@contextlib.contextmanager
def virtually(mesh: Mesh | AbstractMesh | None) -> Iterator[TraceNotes]:
    """Return a context in which programs may set virtual meshes."""
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


class EndedEarly(BaseException):
    """The program ended at a `shard_map`, with these results."""

    def __init__(self, results: Any):
        super().__init__()
        self.results = results


@contextlib.contextmanager
def leniently(last: int | None) -> Iterator[None]:
    """Return a context that ignores `check_vma`, and ends the program after a `shard_map`.

    Its results cannot leave a function that is compiled apart, so that `jit` is turned off then.
    What JAX caches meanwhile is not found outside of it.
    """
    notes = _VIRTUAL.get()
    assert notes is not None
    notes.lenient, notes.last = True, last
    try:
        with _lenient_context()(next(_NUMBERS)), jax.disable_jit(last is not None):
            yield
    finally:
        notes.lenient, notes.last = False, None


_NUMBERS = itertools.count(1)


@functools.cache
def _lenient_context() -> Any:
    """Return a JAX user context, whose value is part of the keys of JAX's caches."""
    return jax.make_user_context(0)


def _patches() -> list[Patch]:
    """Return the patches that check whether a simulated program is being traced."""
    return [
        Patch(_shardings.set_mesh, "__init__", _set_mesh),
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
        notes = _VIRTUAL.get()
        if notes is not None and notes.lenient:
            params["check_vma"] = False
        outs = original(*args, **params)
        if notes is not None:
            shapes = tuple(tuple(out.shape) for out in getattr(outs, "vals", outs))
            notes.mapped.append(Mapped(_source.current(), shapes))
            if notes.lenient and notes.last == len(notes.mapped) - 1:
                raise EndedEarly(outs.unflatten() if hasattr(outs, "unflatten") else list(outs))
        return outs

    return process


def _refuse_other_mesh(used: Mesh | AbstractMesh, notes: TraceNotes) -> None:
    """Raise for a `shard_map` on its own mesh, if the program is traced for another."""
    if notes.mesh is None or used.size == notes.size:
        return
    if any(name in notes.mesh.axis_names for name in used.axis_names):
        raise RefusedError(
            f"this shard_map runs on a mesh of its own, {dict(used.shape)}, and not on the one "
            f"that the program is to run on, {dict(notes.mesh.shape)}",
            "A program gets the mesh that it runs on as an argument.",
            "jax.shard_map(body, mesh=mesh, ...), with the mesh that is passed; or, for a program "
            "on its own mesh, omit mesh= (simulate, explain and inspect do not need it).",
        )

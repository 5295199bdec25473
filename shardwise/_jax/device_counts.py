"""Programs that count the devices of this machine while they are traced for a mesh of another size.

`jax.device_count()`, `jax.local_device_count()` and the length of `jax.devices()` are constants in
the trace and do not appear in the jaxpr. So calling them raises an error, even if the function was
imported by name (`from jax import device_count`), except for `from jax import local_devices`, which
queries the backend only once. A program may use a single device (`jax.devices()[0].platform`); any
operation that reveals their number raises an error: `len`, a loop that reaches the end, a copy, an
array of them. The caller is determined from the stack frames.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, cast

import jax
import numpy as np
from jax._src import config as _config
from jax._src import xla_bridge as _bridge

from .._base.errors import UnsupportedError, prefix
from .patches import Patch
from .source_lines import is_own

_NAMES = ("device_count", "local_device_count", "devices")
_QUERIES = {getattr(_bridge, name).__code__: name for name in _NAMES}
_HERE = (prefix(Path(__file__).parents[1]), prefix(Path(np.__file__).parent))

MeshSize = Callable[[], "int | None"]
"""Returns the number of devices of the mesh that a program is being traced for, if any."""


def elsewhere(size: int | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which programs are traced for a machine with this many devices.

    A `jit` that was traced for this machine may have counted its devices, so it is traced again.
    JAX caches traces by its settings, so one setting gets another, equivalent value: a pattern,
    removed from the names of source files, that matches nothing. A new setting would invalidate
    everything that JAX has compiled before.
    """
    if size in (None, _bridge.get_backend().device_count()):
        return contextlib.nullcontext()
    setting = _config.hlo_source_file_canonicalization_regex
    return setting(f"(?:{setting.value})|{_NEVER}" if setting.value else _NEVER)


_NEVER = "(?!)"


def counting_patches(mesh_size: MeshSize) -> list[Patch]:
    """Return the patches that detect a program that counts the devices of this machine."""
    return [
        Patch(_bridge, "get_backend", functools.partial(_backend, mesh_size=mesh_size)),
        Patch(jax, "local_devices", functools.partial(_local_devices, mesh_size=mesh_size)),
    ]


def _backend(original: Callable[..., Any], mesh_size: MeshSize) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_backend(*args: Any) -> Any:
        backend = original(*args)
        if mesh_size() is None:
            return backend
        frame = sys._getframe(1)
        name = _QUERIES.get(frame.f_code)
        caller = frame.f_back
        if name is None or caller is None or _is_library(caller.f_code.co_filename):
            return backend
        return _Backend(backend, caller, mesh_size)

    return get_backend


def _local_devices(original: Callable[..., Any], mesh_size: MeshSize) -> Callable[..., Any]:
    """Replace a function that caches its result and does not query the backend each time."""

    @functools.wraps(original)
    def local_devices(*args: Any, **kwargs: Any) -> list[Any]:
        devices = original(*args, **kwargs)
        if mesh_size() in (None, len(devices)) or _is_library(sys._getframe(1).f_code.co_filename):
            return devices
        return _Devices(devices, "jax.local_devices()", mesh_size)

    return local_devices


class _Backend:
    """A proxy of the backend for one query of the user's code."""

    def __init__(self, backend: Any, caller: FrameType, mesh_size: MeshSize):
        self.backend, self.caller, self.mesh_size = backend, caller, mesh_size

    def device_count(self) -> int:
        return self._counted("jax.device_count()", self.backend.device_count())

    def local_device_count(self) -> int:
        return self._counted("jax.local_device_count()", self.backend.local_device_count())

    def devices(self) -> list[Any]:
        devices = self.backend.devices()
        is_same_count = len(devices) == self.mesh_size()
        return devices if is_same_count else _Devices(devices, "jax.devices()", self.mesh_size)

    def _counted(self, query: str, count: int) -> int:
        _refuse_another(f"{query} is", count, self.mesh_size(), self.caller)
        return count


class _Devices(list[Any]):
    """A list of devices that a program may use one by one, and not count."""

    def __init__(self, devices: list[Any], name: str, mesh_size: MeshSize):
        super().__init__(devices)
        self.name, self.mesh_size = name, mesh_size

    def __bool__(self) -> bool:
        return super().__len__() > 0

    def __len__(self) -> int:
        count = super().__len__()
        self.refuse_count(f"len({self.name}) is")
        return count

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.refuse_count()  # reaching the end reveals their number

    def __getitem__(self, at: Any) -> Any:
        mesh_indices, local_indices = range(self.mesh_size() or 0), range(super().__len__())
        # An index is safe if it selects the same devices here and on the mesh.
        if isinstance(at, slice) or not 0 <= at < len(local_indices):
            with contextlib.suppress(IndexError):
                if mesh_indices[at] != local_indices[at]:
                    self.refuse_count()
        return super().__getitem__(at)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        # NumPy would ignore an error of __len__.
        return np.array([*self], *args, **kwargs)

    def refuse_count(self, query: str = "") -> None:
        """Raise for an operation that depends on their number, if the mesh has another number."""
        count = super().__len__()
        _refuse_another(query or f"all of {self.name} are", count, self.mesh_size(), _user_frame())


# Otherwise the list would be a single leaf of a tree.
jax.tree_util.register_pytree_node(
    _Devices, lambda devices: ([*devices], None), lambda _, devices: cast(Any, [*devices])
)


_SAFE = {"__new__", "__init__", "__getattribute__", "__contains__", "__repr__", "index"}
"""Methods of lists that do not reveal the length, or that are overridden."""


def _refusing(method: Any) -> Any:
    @functools.wraps(method)
    def wrapped(self: _Devices, *args: Any, **kwargs: Any) -> Any:
        self.refuse_count()
        return method(self, *args, **kwargs)

    return wrapped


for _name, _method in {**vars(list), "__reduce_ex__": object.__reduce_ex__}.items():
    if callable(_method) and _name not in {*_SAFE, *vars(_Devices)}:
        setattr(_Devices, _name, _refusing(_method))


def _is_library(file: str) -> bool:
    """Return whether a source file belongs to JAX, NumPy or shardwise."""
    return is_own(file) or file.startswith(_HERE)


def _user_frame() -> FrameType:
    """Return the innermost frame of the user."""
    frame = first = sys._getframe(2)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame or first


def _refuse_another(query: str, count: int, size: int | None, caller: FrameType) -> None:
    if size in (None, count):
        return
    raise UnsupportedError(
        f"{query} {count} here, and the mesh has {size} device{'s' * (size != 1)}",
        where=f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
        rule="It counts the devices of this machine, so the result would differ from that of a "
        "machine with as many devices as the mesh.",
        remedy='mesh.size, or jax.lax.axis_size("data") inside the shard_map. The kind of device '
        "is available from a single one: jax.devices()[0].platform.",
    )

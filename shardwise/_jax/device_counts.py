"""Programs that count the devices of this machine while they are traced for a mesh of another size.

`jax.device_count()`, `jax.local_device_count()` and the length of `jax.devices()` are constants in
the trace: nothing of them is left in the jaxpr. So they raise an error when they are called, also
if the function was imported by its name (`from jax import device_count`), except for `from jax
import local_devices`, which asks the backend only once. A program may use a single device
(`jax.devices()[0].platform`); whatever would reveal their number raises an error, by whichever
function: `len`, a loop that reaches their end, a copy, an array of them. The caller is found from
the stack frames, so no source is needed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax._src import config as _config
from jax._src import xla_bridge as _bridge

from .._base.errors import UnsupportedError, prefix
from .patches import Patch
from .source_lines import is_own

_NAMES = ("device_count", "local_device_count", "devices")
_ASKING = {getattr(_bridge, name).__code__: name for name in _NAMES}
_HERE = (prefix(Path(__file__).parents[1]), prefix(Path(np.__file__).parent))

MeshSize = Callable[[], "int | None"]
"""Returns the number of devices of the mesh that a program is being traced for, if any."""


def elsewhere(size: int | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which programs are traced for a machine with this many devices.

    A `jit` that was traced for this machine may have counted its devices, so it is traced again.
    JAX caches traces by its settings: one of them gets another, equivalent value, which removes
    from the names of source files what matches nothing. A setting of our own would invalidate all
    that JAX has compiled before.
    """
    if size in (None, _bridge.get_backend().device_count()):
        return contextlib.nullcontext()
    setting = _config.hlo_source_file_canonicalization_regex
    return setting(f"(?:{setting.value})|{_NEVER}" if setting.value else _NEVER)


_NEVER = "(?!)"


def counting_patches(wanted: MeshSize) -> list[Patch]:
    """Return the patches that detect a program that counts the devices of this machine."""
    return [
        Patch(_bridge, "get_backend", functools.partial(_backend, wanted=wanted)),
        Patch(jax, "local_devices", functools.partial(_local_devices, wanted=wanted)),
    ]


def _backend(original: Callable[..., Any], wanted: MeshSize) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_backend(*args: Any) -> Any:
        backend = original(*args)
        if wanted() is None:
            return backend
        frame = sys._getframe(1)
        name = _ASKING.get(frame.f_code)
        caller = frame.f_back
        if name is None or caller is None or _is_library(caller.f_code.co_filename):
            return backend
        return _Backend(backend, caller, wanted)

    return get_backend


def _local_devices(original: Callable[..., Any], wanted: MeshSize) -> Callable[..., Any]:
    """Replace a function that does not ask the backend each time, since it caches the answer."""

    @functools.wraps(original)
    def local_devices(*args: Any, **kwargs: Any) -> list[Any]:
        devices = original(*args, **kwargs)
        if wanted() in (None, len(devices)) or _is_library(sys._getframe(1).f_code.co_filename):
            return devices
        return _Devices(devices, "jax.local_devices()", wanted)

    return local_devices


class _Backend:
    """A proxy of the backend for one question of the user's code."""

    def __init__(self, backend: Any, caller: FrameType, wanted: MeshSize):
        self.backend, self.caller, self.wanted = backend, caller, wanted

    def device_count(self) -> int:
        return self._counted("jax.device_count()", self.backend.device_count())

    def local_device_count(self) -> int:
        return self._counted("jax.local_device_count()", self.backend.local_device_count())

    def devices(self) -> list[Any]:
        devices = self.backend.devices()
        is_same_count = len(devices) == self.wanted()
        return devices if is_same_count else _Devices(devices, "jax.devices()", self.wanted)

    def _counted(self, asked: str, found: int) -> int:
        _refuse_another(f"{asked} is", found, self.wanted(), self.caller)
        return found


class _Devices(list[Any]):
    """A list of devices that a program may use one by one, and not count."""

    def __init__(self, found: list[Any], name: str, wanted: MeshSize):
        super().__init__(found)
        self.name, self.wanted = name, wanted

    def __bool__(self) -> bool:
        return super().__len__() > 0

    def __len__(self) -> int:
        count = super().__len__()
        self.refuse_count(f"len({self.name}) is")
        return count

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.refuse_count()  # the end tells how many there were

    def __getitem__(self, at: Any) -> Any:
        mesh_indices, own_indices = range(self.wanted() or 0), range(super().__len__())
        # The same ones there as here, unless one of the two does not have them.
        if isinstance(at, slice) or not 0 <= at < len(own_indices):
            with contextlib.suppress(IndexError):
                if mesh_indices[at] != own_indices[at]:
                    self.refuse_count()
        return super().__getitem__(at)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        # NumPy would pass over an error of __len__.
        return np.array([*self], *args, **kwargs)

    def refuse_count(self, asked: str = "") -> None:
        """Raise for an operation that depends on their number, if the mesh has another number."""
        count = super().__len__()
        _refuse_another(asked or f"all of {self.name} are", count, self.wanted(), _asking())


def _flattened(devices: _Devices) -> tuple[list[Any], None]:
    return [*devices], None


def _put_together(_: None, devices: Any) -> Any:
    return [*devices]


# Of a class that JAX does not know it would make one leaf.
jax.tree_util.register_pytree_node(_Devices, _flattened, _put_together)


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


def _asking() -> FrameType:
    """Return the innermost frame of the user."""
    frame = first = sys._getframe(2)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame or first


def _refuse_another(asked: str, found: int, wanted: int | None, caller: FrameType) -> None:
    if wanted in (None, found):
        return
    raise UnsupportedError(
        f"{asked} {found} here, and the mesh has {wanted} device{'s' * (wanted != 1)}",
        where=f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
        rule="It counts the devices of this machine, so that the result would not be that "
        "of a machine with as many devices as the mesh.",
        remedy='mesh.size, or jax.lax.axis_size("data") inside the shard_map. For the kind of '
        "device, one will do: jax.devices()[0].platform.",
    )

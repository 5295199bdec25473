"""Programs that count the devices of this machine while they are traced for a mesh of another size.

`jax.device_count()`, `jax.local_device_count()` and the length of `jax.devices()` are numbers in
the trace: nothing of them is left in the jaxpr. So they are refused as they are asked for, also
where the function was imported by its name (`from jax import device_count`); but for
`from jax import local_devices`, which asks the backend only once. Of the devices
themselves a program may take one (`jax.devices()[0].platform`); whatever would tell how many there
are is refused, by whichever function it is done: `len`, a loop that comes to the end of them, a
copy, an array of them. Who asks is told by the frames, so that it needs no source.
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

from .._base.errors import UnsupportedError, explain_error, prefix
from .patches import Patch
from .source_lines import is_own

_NAMES = ("device_count", "local_device_count", "devices")
_ASKING = {getattr(_bridge, name).__code__: name for name in _NAMES}
_OWN = (prefix(Path(__file__).parents[1]), prefix(Path(np.__file__).parent))

Wanted = Callable[[], "int | None"]
"""How many devices the mesh has that a program is being traced for, if it is."""


def elsewhere(size: int | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which programs are traced for a machine with so many devices.

    A `jit` that was traced for this machine may have counted its devices, so it is traced again.
    JAX remembers traces by its settings: one of them gets another value, which means the same, for
    it removes from the names of source files what matches nothing. A setting of our own would have
    JAX forget all that it has compiled before.
    """
    if size in (None, _bridge.get_backend().device_count()):
        return contextlib.nullcontext()
    setting = _config.hlo_source_file_canonicalization_regex
    return setting(f"(?:{setting.value})|{_NEVER}" if setting.value else _NEVER)


_NEVER = "(?!)"


def counting_patches(wanted: Wanted) -> list[Patch]:
    """Return what notices that a program counts the devices of this machine."""
    return [
        Patch(_bridge, "get_backend", functools.partial(_backend, wanted=wanted)),
        Patch(jax, "local_devices", functools.partial(_local_devices, wanted=wanted)),
    ]


def _backend(original: Callable[..., Any], wanted: Wanted) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_backend(*args: Any) -> Any:
        backend = original(*args)
        if wanted() is None:
            return backend
        asking = sys._getframe(1)
        name = _ASKING.get(asking.f_code)
        caller = asking.f_back
        if name is None or caller is None or _is_library(caller.f_code.co_filename):
            return backend
        return _Backend(backend, caller, wanted)

    return get_backend


def _local_devices(original: Callable[..., Any], wanted: Wanted) -> Callable[..., Any]:
    """Replace what does not ask the backend each time: it answers from a cache."""

    @functools.wraps(original)
    def local_devices(*args: Any, **kwargs: Any) -> list[Any]:
        found = original(*args, **kwargs)
        if wanted() in (None, len(found)) or _is_library(sys._getframe(1).f_code.co_filename):
            return found
        return _Devices(found, "jax.local_devices()", wanted)

    return local_devices


class _Backend:
    """Stands for the backend in one question of the user's."""

    def __init__(self, backend: Any, caller: FrameType, wanted: Wanted):
        self.backend, self.caller, self.wanted = backend, caller, wanted

    def device_count(self) -> int:
        return self._counted("jax.device_count()", self.backend.device_count())

    def local_device_count(self) -> int:
        return self._counted("jax.local_device_count()", self.backend.local_device_count())

    def devices(self) -> list[Any]:
        found = self.backend.devices()
        same = len(found) == self.wanted()
        return found if same else _Devices(found, "jax.devices()", self.wanted)

    def _counted(self, asked: str, found: int) -> int:
        _refuse_another(f"{asked} is", found, self.wanted(), self.caller)
        return found


class _Devices(list[Any]):
    """Devices that a program may use one by one, and not count."""

    def __init__(self, found: list[Any], name: str, wanted: Wanted):
        super().__init__(found)
        self.name, self.wanted = name, wanted

    def __bool__(self) -> bool:
        return super().__len__() > 0

    def __len__(self) -> int:
        found = super().__len__()
        self.refuse_to_tell(f"len({self.name}) is")
        return found

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.refuse_to_tell()  # the end tells how many there were

    def __getitem__(self, at: Any) -> Any:
        there, here = range(self.wanted() or 0), range(super().__len__())
        # The same ones there as here, unless one of the two does not have them.
        if isinstance(at, slice) or not 0 <= at < len(here):
            with contextlib.suppress(IndexError):
                if there[at] != here[at]:
                    self.refuse_to_tell()
        return super().__getitem__(at)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        # NumPy would pass over an error of __len__.
        return np.array([*self], *args, **kwargs)

    def refuse_to_tell(self, asked: str = "") -> None:
        """Refuse what depends on how many there are, where the mesh has another number."""
        found = super().__len__()
        _refuse_another(asked or f"all of {self.name} are", found, self.wanted(), _asking())


def _flattened(devices: _Devices) -> tuple[list[Any], None]:
    return [*devices], None


def _put_together(_: None, devices: Any) -> Any:
    return [*devices]


# Of a class that JAX does not know it would make one leaf.
jax.tree_util.register_pytree_node(_Devices, _flattened, _put_together)


_SAFE = {"__new__", "__init__", "__getattribute__", "__contains__", "__repr__", "index"}
"""Methods of lists that do not tell how many there are, or of which none are left."""


def _telling(method: Any) -> Any:
    @functools.wraps(method)
    def told(self: _Devices, *args: Any, **kwargs: Any) -> Any:
        self.refuse_to_tell()
        return method(self, *args, **kwargs)

    return told


for _name, _method in {**vars(list), "__reduce_ex__": object.__reduce_ex__}.items():
    if callable(_method) and _name not in {*_SAFE, *vars(_Devices)}:
        setattr(_Devices, _name, _telling(_method))


def _is_library(file: str) -> bool:
    """Whether a source file is JAX's, NumPy's or ours."""
    return is_own(file) or file.startswith(_OWN)


def _asking() -> FrameType:
    """The innermost frame of the user's."""
    frame = first = sys._getframe(2)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame or first


def _refuse_another(asked: str, found: int, wanted: int | None, caller: FrameType) -> None:
    if wanted in (None, found):
        return
    raise UnsupportedError(
        explain_error(
            f"{asked} {found} here, and the mesh has {wanted} device{'s' * (wanted != 1)}",
            where=f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
            rule="It counts the devices of this machine, so that the result would not be that "
            "of a machine with as many devices as the mesh.",
            remedy='mesh.size, or jax.lax.axis_size("data") inside the shard_map. For the kind of '
            "device, one will do: jax.devices()[0].platform.",
        )
    )

"""Programs that count the devices of this machine while they are traced for a mesh of another size.

`jax.device_count()`, `jax.local_device_count()` and `len(jax.devices())` are numbers in the trace:
nothing of them is left in the jaxpr. So they are refused as they are asked for, also where the
function was imported by its name (`from jax import device_count`). All of them ask the backend,
which is where they are heard. What else is done with `jax.devices()` is left alone.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax._src import xla_bridge as _bridge

from .._errors import UnsupportedError, explain_error
from .lines import is_own

_NAMES = ("device_count", "local_device_count", "devices")
_ASKING = {getattr(_bridge, name).__code__: name for name in _NAMES}

Wanted = Callable[[], "int | None"]
"""How many devices the mesh has that a program is being traced for, if it is."""


def count_what_is_there(wanted: Wanted) -> None:
    """Hear what programs ask of the backend, once for the process."""
    original = _bridge.get_backend

    @functools.wraps(original)
    def get_backend(*args: Any) -> Any:
        backend = original(*args)
        if wanted() is None:
            return backend
        asking = sys._getframe(1)
        name = _ASKING.get(asking.f_code)
        caller = asking.f_back
        if name is None or caller is None or is_own(caller.f_code.co_filename):
            return backend
        return _Backend(backend, caller, wanted)

    _bridge.get_backend = get_backend
    jax.local_devices = _listed(jax.local_devices, wanted)


class _Backend:
    """Stands for the backend in one question of the user's."""

    def __init__(self, backend: Any, caller: FrameType, wanted: Wanted):
        self.backend, self.caller, self.wanted = backend, caller, wanted

    def device_count(self) -> int:
        return self._counted("jax.device_count()", self.backend.device_count())

    def local_device_count(self) -> int:
        return self._counted("jax.local_device_count()", self.backend.local_device_count())

    def devices(self) -> list[Any]:
        return _Devices(self.backend.devices(), "jax.devices", self.wanted)

    def _counted(self, asked: str, found: int) -> int:
        _refuse_another(asked, found, self.wanted(), self.caller)
        return found


def _listed(original: Callable[..., list[Any]], wanted: Wanted) -> Callable[..., list[Any]]:
    @functools.wraps(original)
    def local_devices(*args: Any, **kwargs: Any) -> list[Any]:
        found = original(*args, **kwargs)
        return found if wanted() is None else _Devices(found, "jax.local_devices", wanted)

    return local_devices


class _Devices(list[Any]):
    """Devices that a program may use, and not count."""

    def __init__(self, found: list[Any], name: str, wanted: Wanted):
        super().__init__(found)
        self.name, self.wanted = name, wanted

    def __len__(self) -> int:
        found, caller = super().__len__(), sys._getframe(1)
        # NumPy and `list` ask as well, on behalf of the same line.
        if not is_own(caller.f_code.co_filename) and _call(caller).startswith("len("):
            _refuse_another(f"len({self.name}())", found, self.wanted(), caller)
        return found


def _call(frame: FrameType) -> str:
    """The expression that a frame is at, as it is written in its line."""
    at = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).encode()
    return line[at[2] or 0 :].decode(errors="ignore")


def _refuse_another(asked: str, found: int, wanted: int | None, caller: FrameType) -> None:
    if wanted in (None, found):
        return
    raise UnsupportedError(
        explain_error(
            f"{asked} is {found} here, and the mesh has {wanted} device{'s' * (wanted != 1)}",
            where=f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}",
            rule="It counts the devices of this machine, so that the result would not be that "
            "of a machine with as many devices as the mesh.",
            remedy='mesh.size, or jax.lax.axis_size("data") inside the shard_map.',
        )
    )

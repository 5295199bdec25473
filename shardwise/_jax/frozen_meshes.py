"""Undo what JAX stores in a `shard_map` that takes the ambient mesh.

`jax.shard_map(body, in_specs=..., out_specs=...)` without a mesh stores the mesh of its first call
in its closure and rejects every other mesh afterwards. A program that is traced for one virtual
mesh after another, and then runs on real devices, needs the original closure, so the values are
restored after each trace.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_Noted = tuple[CodeType, Any, Any]
"""The code of the mapped function, a weak reference to the function inside, its axis names."""

_FROZEN: list[list[_Noted]] = []
"""One list for each running trace, innermost last."""


def note_ambient(mesh: Any, axis_names: Any) -> None:
    """Record the `shard_map` that calls JAX's checks, two frames up, if it has no mesh yet."""
    if mesh is not None or not _FROZEN:
        return
    frame = sys._getframe(2)
    inner = frame.f_locals.get("f")
    with contextlib.suppress(TypeError):  # without weak references it is not a module-level one
        _FROZEN[-1].append((frame.f_code, weakref.ref(inner), axis_names))


@contextlib.contextmanager
def unfreeze_meshes() -> Iterator[None]:
    """Make every `shard_map` called inside without a mesh forget the mesh afterwards."""
    _FROZEN.append([])
    try:
        yield
    finally:
        functions = _FROZEN.pop()
        originals = {
            id(inner()): (code, names) for code, inner, names in functions if inner() is not None
        }
        codes = {code for code, _ in originals.values()}
        if codes:
            _restore(originals, codes)


def _restore(alive: dict[int, tuple[CodeType, Any]], codes: set[CodeType]) -> None:
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__ not in codes:
            continue
        names = function.__code__.co_freevars
        cells = dict(zip(names, function.__closure__ or (), strict=True))
        with contextlib.suppress(KeyError, ValueError):  # another function, or an empty cell
            _, axis_names = alive[id(cells["f"].cell_contents)]
            cells["mesh"].cell_contents = None
            cells["axis_names"].cell_contents = axis_names

"""The frames of an error's traceback, and the call on the last user line."""

from __future__ import annotations

import inspect
import itertools
import traceback

from ... import _jax
from ..._base.errors import text_of
from ..._mesh import AbstractMesh, Mesh
from ..._program.where import choose


class ErrorPath:
    """An error, with the frames it passed through, innermost last."""

    def __init__(self, error: Exception, mesh: Mesh | AbstractMesh | None):
        self.error = error
        self.frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        self.text = _jax.about_results(self.frames) or text_of(error)
        self.files = [frame.f_code.co_filename for frame in self.frames]
        self.known = self._axis_names(mesh)
        self.real = isinstance(mesh, Mesh)

    @property
    def inside(self) -> list[str]:
        """Return the files between the last line outside JAX and the error, innermost first."""
        return list(itertools.takewhile(_jax.is_own, reversed(self.files)))

    @property
    def where(self) -> str:
        """Return the user's line in the traceback, else the one that called shardwise."""
        stack = [*traceback.extract_stack(), *traceback.extract_tb(self.error.__traceback__)]
        frames = [
            _jax.Frame(s.filename, s.lineno or 0, s.name, 0, 0)
            for s in reversed(stack)
            if not _jax.is_own(s.filename)
        ]
        return str(choose(frames))

    @property
    def body(self) -> str:
        """Return where the body of the innermost `shard_map` is defined, if no user line is in the
        traceback.

        A `shard_map` that is passed directly is called by shardwise: its line is not in the
        traceback, and the user's line that called shardwise is unrelated.
        """
        files = [s.filename for s in traceback.extract_tb(self.error.__traceback__)]
        if choose([_jax.Frame(file, 1, "", 0, 0) for file in files if not _jax.is_own(file)]).file:
            return ""
        bodies = [inspect.unwrap(body) for body in _jax.mapped_functions(self.frames)]
        codes = [function.__code__ for function in bodies if inspect.isfunction(function)]
        user_codes = [code for code in codes if not _jax.is_own(code.co_filename)]
        locations = [
            _jax.Frame(c.co_filename, c.co_firstlineno, c.co_name, 0, 0) for c in user_codes
        ]
        return str(choose(locations[-1:])) if locations else ""

    @property
    def called(self) -> _jax.CollectiveCall | None:
        """Return the collective that was called on the last line outside JAX, if any."""
        return _jax.collective_called(self.frames[len(self.frames) - len(self.inside) :])

    def of_a_vmap(self, axis: str) -> bool:
        """Return whether a `vmap` in the traceback has an axis of this name."""
        return axis in _jax.vmap_axes(self.frames)

    def unbound(self) -> str | None:
        """Return the axis that the innermost call of JAX names."""
        return _jax.axis_named(self.frames)

    def _axis_names(self, mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
        """Return the axis names of the mesh of the innermost frame that has one."""
        named_mesh = _jax.mesh_named(self.frames) or mesh
        return tuple(map(str, named_mesh.axis_names)) if named_mesh is not None else ()

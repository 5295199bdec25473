"""The way that an error came: the lines it went through, and what was called on the last."""

from __future__ import annotations

import inspect
import itertools
import traceback

from ... import _jax
from ..._base.errors import text_of
from ..._mesh import AbstractMesh, Mesh
from ..._program.where import choose


class Way:
    """An error, with the frames it went through, the innermost last."""

    def __init__(self, error: Exception, mesh: Mesh | AbstractMesh | None):
        self.error = error
        self.frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        self.text = _jax.about_results(self.frames) or text_of(error)
        self.files = [frame.f_code.co_filename for frame in self.frames]
        self.known = self._axis_names(mesh)
        self.real = isinstance(mesh, Mesh)

    @property
    def inside(self) -> list[str]:
        """The files on the way from the last line of somebody else's to the error."""
        return list(itertools.takewhile(_jax.is_own, reversed(self.files)))

    @property
    def where(self) -> str:
        """The user's line: on the way to the error, or else the one that called us."""
        way = [*traceback.extract_stack(), *traceback.extract_tb(self.error.__traceback__)]
        frames = [
            _jax.Frame(s.filename, s.lineno or 0, s.name, 0, 0)
            for s in reversed(way)
            if not _jax.is_own(s.filename)
        ]
        return str(choose(frames))

    @property
    def body(self) -> str:
        """Where the body of the innermost shard_map is written, if the way leads past no line.

        A shard_map that is handed over as it is has been called by us: its own line is not on the
        way to the error, and the line of that call says nothing about it.
        """
        way = [s.filename for s in traceback.extract_tb(self.error.__traceback__)]
        if choose([_jax.Frame(file, 1, "", 0, 0) for file in way if not _jax.is_own(file)]).file:
            return ""
        bodies = [inspect.unwrap(body) for body in _jax.mapped_functions(self.frames)]
        codes = [one.__code__ for one in bodies if inspect.isfunction(one)]
        own = [code for code in codes if not _jax.is_own(code.co_filename)]
        places = [_jax.Frame(c.co_filename, c.co_firstlineno, c.co_name, 0, 0) for c in own]
        return str(choose(places[-1:])) if places else ""

    @property
    def called(self) -> _jax.CollectiveCall | None:
        """The collective that was called on the last line of somebody else's, if one was."""
        return _jax.collective_called(self.frames[len(self.frames) - len(self.inside) :])

    def of_a_vmap(self, axis: str) -> bool:
        """Whether a `vmap` on the way to the error names its axis so."""
        return axis in _jax.vmap_axes(self.frames)

    def unbound(self) -> str | None:
        """The axis that the innermost call of JAX's names."""
        return _jax.axis_named(self.frames)

    def _axis_names(self, mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
        """The axis names of the mesh that an error is about: the innermost one on its stack."""
        found = _jax.mesh_named(self.frames) or mesh
        return tuple(map(str, found.axis_names)) if found is not None else ()

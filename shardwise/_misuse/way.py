"""The way that an error came: the lines it went through, and what was called on the last."""

from __future__ import annotations

import inspect
import itertools
import traceback
from types import FrameType

from .. import _jax
from .._errors import text_of
from .._mesh import AbstractMesh, Mesh
from .._program.where import choose


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
        bodies = [
            inspect.unwrap(found)
            for frame, file in zip(self.frames, self.files, strict=True)
            if _jax.is_shard_map(file) and callable(found := frame.f_locals.get("f"))
        ]
        codes = [one.__code__ for one in bodies if inspect.isfunction(one)]
        own = [code for code in codes if not _jax.is_own(code.co_filename)]
        places = [_jax.Frame(c.co_filename, c.co_firstlineno, c.co_name, 0, 0) for c in own]
        return str(choose(places[-1:])) if places else ""

    @property
    def called(self) -> FrameType | None:
        """The collective that was called on the last line of somebody else's, if one was."""
        way = zip(reversed(self.frames), self.inside, strict=False)
        calls = [frame for frame, file in way if _jax.is_collective(file)]
        return next((one for one in reversed(calls) if "axis_name" in one.f_locals), None)

    def of_a_vmap(self, axis: str) -> bool:
        """Whether a `vmap` on the way to the error names its axis so."""
        calls = (frame for frame in self.frames if frame.f_code.co_name == "vmap_f")
        return any(frame.f_locals.get("axis_name") == axis for frame in calls)

    def unbound(self) -> str | None:
        """The axis that the innermost call of JAX's names."""
        found = None
        for frame, file in zip(self.frames, self.files, strict=True):
            for local in ("axis_name", "axes", "axis_names") if _jax.is_own(file) else ():
                names = frame.f_locals.get(local)
                for name in names if isinstance(names, tuple | list) else (names,):
                    if isinstance(name, str):
                        found = name
        return found

    def _axis_names(self, mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
        """The axis names of the mesh that an error is about: the innermost one on its stack."""
        found = tuple(mesh.axis_names) if mesh is not None else ()
        for frame in self.frames:
            inner = frame.f_locals.get("mesh")
            if isinstance(inner, Mesh | AbstractMesh):
                found = tuple(inner.axis_names)
        return tuple(map(str, found))

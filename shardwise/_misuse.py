"""JAX's errors about meshes and specs, told with the place, the rule and the remedy."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from . import _jax
from ._errors import ShardingError, ShardwiseError, explain_error
from ._mesh import AbstractMesh, Mesh, near
from ._program.where import choose

T = TypeVar("T")


def reading_errors(run: Callable[[], T], mesh: Mesh | AbstractMesh | None) -> T:
    """Run; turn JAX's errors about the mesh into `ShardingError`s and let all others through."""
    try:
        return run()
    except ShardwiseError:
        raise
    except AssertionError as error:
        # With its check on, JAX asserts that the axis of a reduction is bound, and says no more.
        axis, known = _unbound_axis(run, mesh)
        if axis is None:
            raise
        raise ShardingError(_no_axis(axis, _place(error), known)) from error
    except (ValueError, NameError, TypeError) as error:
        message = _reword(error, mesh)
        if message is None:
            raise
        raise ShardingError(message) from error


def _unbound_axis(
    run: Callable[[], Any], mesh: Mesh | AbstractMesh | None
) -> tuple[str | None, tuple[str, ...]]:
    """The axis that the innermost call names and the mesh does not have: fail again, and look."""
    try:
        with _jax.whole_tracebacks():
            run()
    except AssertionError as error:
        known = _mesh_of(error, mesh)
        found = None
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for local in ("axis_name", "axes", "axis_names"):
                names = frame.f_locals.get(local)
                for name in names if isinstance(names, tuple | list) else (names,):
                    if isinstance(name, str) and name not in known:
                        found = name
        return found, known
    return None, ()


def _reword(error: Exception, mesh: Mesh | AbstractMesh | None) -> str | None:
    text = str(error)
    where = _place(error)
    known = _mesh_of(error, mesh)
    if _jax.INDIVISIBLE.search(text):
        return _indivisible(text, where)
    if match := _jax.UNBOUND_AXIS.search(text) or _jax.SPEC_AXIS.search(text):
        return _no_axis(match["axis"], where, known)
    if match := _jax.STATELESS_AXES.search(text):
        missing = [name for name in re.findall(r"'(\w+)'", match["axes"]) if name not in known]
        return _no_axis(missing[0], where, known) if missing else None
    if _jax.FROZEN_MESH.search(text):
        return explain_error(
            "this shard_map is bound to another mesh than the one it is to run on: its own, or "
            "that of the first call",
            where=where,
            rule="A jax.shard_map keeps the mesh it was made with; one made without a mesh takes "
            "that of its first call for good.",
            remedy="make it inside the function, on the mesh that is passed: "
            "jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...). A program that is to run "
            "on its own mesh is simulated without mesh=.",
        )
    if _jax.NO_MESH.search(text):
        return explain_error(
            "this shard_map has no mesh, and there is none around it",
            where=where,
            rule="A shard_map runs over a mesh.",
            remedy="sw.simulate(f, mesh=sw.mesh(data=8)).",
        )
    if match := _jax.SPEC_COUNT.search(text):
        things = "argument" if match["specs"] == "in_specs" else "result"
        return explain_error(
            f"{match['specs']} do not match the {things}s.\n  " + text.replace("\n", "\n  "),
            where=where,
            rule=f"There is one spec for each {things}, or one that serves all of them.",
            remedy=f"give {match['specs']} as a tuple with one entry for each {things}.",
        )
    return explain_error(text, where=where) if "shard_map" in text else None


def _indivisible(text: str, where: str) -> str:
    lines = []
    names = list(_jax.INDIVISIBLE_ARGUMENT.finditer(text))
    for match in _jax.INDIVISIBLE.finditer(text):
        before = [name for name in names if name.start() < match.start()]
        argument = _argument(before[-1]) if before else "an argument"
        size, n = int(match["size"]), int(match["n"])
        below, above = size // n * n, -(-size // n) * n
        sizes = f"{below} or {above}" if below else f"{above}"
        lines.append(
            f"{argument}: dimension {match['dim']} of size {size} is split over mesh axis "
            f"{match['axes']} of size {n}; the nearest sizes that work are {sizes}"
        )
    return explain_error(
        "a dimension does not divide.\n  " + "\n  ".join(lines),
        where=where,
        rule="Every device gets an equal part.",
        remedy="pad or trim the array to one of these sizes, or choose a mesh that divides it.",
    )


def _argument(match: re.Match[str]) -> str:
    name = f" ({match['name']})" if match["name"] else ""
    return f"{match['argument']}{name} of shape {match['shape']}"


def _no_axis(axis: str, where: str, known: tuple[str, ...]) -> str:
    hint = near(axis, known)
    names = ", ".join(map(repr, known)) or "none"
    return explain_error(
        f"there is no mesh axis {axis!r} here; the mesh has {names}",
        where=where,
        rule="A collective or a spec names an axis of the mesh around it.",
        remedy=hint or "name one of these, or add the axis to the mesh.",
    )


def _mesh_of(error: BaseException, mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
    """The axis names of the mesh that an error is about: the innermost one on its stack."""
    found = tuple(mesh.axis_names) if mesh is not None else ()
    for frame, _ in traceback.walk_tb(error.__traceback__):
        inner = frame.f_locals.get("mesh")
        if isinstance(inner, Mesh | AbstractMesh):
            found = tuple(inner.axis_names)
    return tuple(map(str, found))


def _place(error: BaseException) -> str:
    """The user's line: on the way to the error, or else the one that called us."""
    way = [*traceback.extract_stack(), *traceback.extract_tb(error.__traceback__)]
    frames = [_jax.Frame(s.filename, s.lineno or 0, s.name, 0, 0) for s in reversed(way)]
    return str(choose(frames))

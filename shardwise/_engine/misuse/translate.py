"""Translate JAX's errors about meshes and specs: add the line, the rule and the remedy.

Only errors raised by JAX itself are translated. Errors of the user's own code, and those of JAX
about something else (a shape, a traced value in an `if`), are raised unchanged.
"""

from __future__ import annotations

import inspect
import itertools
import re
import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

from ... import _jax
from ..._base.errors import ShardingError, ShardwiseError, UnsupportedError, did_you_mean, text_of
from ..._jax import messages
from ..._mesh import AbstractMesh, Mesh
from ..._program.collectives import exchange_in_a_batch, no_derivative
from ..._program.where import choose

T = TypeVar("T")


@_jax.api_boundary
def reading_errors(run: Callable[[], T], mesh: Mesh | AbstractMesh | None) -> T:
    """Run a function; translate JAX's errors about meshes, and raise all others unchanged."""
    try:
        with _jax.whole_tracebacks():
            return run()
    except ShardwiseError:
        raise
    except Exception as error:
        translated = _Translator(error, mesh).read()
        if translated is None:
            raise
        raise translated from error


class _Translator:
    """Translates an error, if it is JAX's and about the mesh."""

    def __init__(self, error: Exception, mesh: Mesh | AbstractMesh | None):
        self.error = error
        self.frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        """The frames that the error passed through, innermost last."""
        self.text = _jax.about_results(self.frames) or text_of(error)
        self.files = [frame.f_code.co_filename for frame in self.frames]
        named_mesh = _jax.mesh_named(self.frames) or mesh
        self.known = () if named_mesh is None else tuple(map(str, named_mesh.axis_names))

    def read(self) -> ShardwiseError | None:
        """Return the translated error; None if there is none."""
        if isinstance(self.error, messages.RefusedError):
            return self._error(*self.error.args)
        if not self.files or not _jax.is_own(self.files[-1]):
            return None
        if any(map(_jax.is_pmap, self.inside)):
            return self._error(
                f"this jax.pmap raises an error ({text_of(self.error).splitlines()[0]})",
                "A pmap maps over the devices of this machine, however many the mesh has.",
                "jax.shard_map in place of pmap.",
                UnsupportedError,
            )
        if _jax.is_ragged_batch(self.error):
            return exchange_in_a_batch(self.where)
        if isinstance(self.error, NotImplementedError) and self._in_groups():
            return self._error(
                "a collective over groups of devices (axis_index_groups)",
                "JAX does not support groups with check_vma.",
                "check_vma=False for this shard_map; or a mesh with an axis for the groups.",
                UnsupportedError,
            )
        if nameless := self._nameless():
            return nameless
        if match := messages.NO_DERIVATIVE.search(self.text):
            return no_derivative(match["name"], self.where)
        return self._reworded() or self._about_the_mesh()

    def _error(
        self,
        problem: str,
        rule: str,
        remedy: str,
        kind: type[ShardwiseError] = ShardingError,
        where: str = "",
    ) -> ShardwiseError:
        return kind(problem, where=where or self.where, rule=rule, remedy=remedy)

    # --- where it happened

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

    # --- what it means

    def _reworded(self) -> ShardwiseError | None:
        """Return the error for a message with a single meaning."""
        in_body, direct = (any(map(_jax.is_shard_map, f)) for f in (self.files, self.inside))
        for row, groups in messages.rewordings(self.error, self.text):
            if (row.outside and in_body) or (row.direct and not direct):
                continue
            problem, remedy = row.problem.format(**groups), row.remedy.format(**groups)
            return self._error(problem, row.rule, remedy, row.kind, self.body)
        return None

    def _about_the_mesh(self) -> ShardwiseError | None:
        if isinstance(self.error, AssertionError):
            # With check_vma, JAX asserts that the axis of a reduction is bound.
            axis = _jax.axis_named(self.frames)
            return self._from_the_end() or (None if axis is None else self._no_axis(axis))
        if isinstance(self.error, IndexError):
            return self._of_a_collective()
        if isinstance(self.error, ZeroDivisionError):
            return self._empty_groups()
        if not isinstance(self.error, ValueError | NameError | TypeError):
            return None
        if messages.INDIVISIBLE.search(self.text):
            return self._indivisible()
        if bullets := list(messages.SPEC_TOO_LONG.finditer(self.text)):
            return self._too_long(bullets)
        if match := messages.UNBOUND_AXIS.search(self.text) or messages.SPEC_AXIS.search(self.text):
            return self._no_axis(match["axis"])
        if match := messages.STATELESS_AXES.search(self.text):
            names = re.findall(r"'(\w+)'", match["axes"])
            missing = [name for name in names if name not in self.known]
            return self._no_axis(missing[0]) if missing else self._mixed_axes(names)
        if match := messages.SPEC_COUNT.search(self.text):
            return self._spec_count(match["specs"])
        if _jax.is_shard_map(self.files[-1]):
            return ShardingError(self.text, where=self.where)
        return self._of_a_collective()

    # --- kinds of errors

    def _in_groups(self) -> bool:
        """Return whether JAX rejects groups of devices, which it does without a message."""
        return not self.text and bool(_jax.groups_given(self.frames[-1]))

    def _empty_groups(self) -> ShardwiseError | None:
        groups = self.called.arguments.get("axis_index_groups") if self.called else None
        if not groups or all(map(len, groups)):
            return None
        return self._error(
            "axis_index_groups has a group without devices",
            "Groups have one size, and each device is in one of them.",
            "leave the empty group out.",
        )

    def _from_the_end(self) -> ShardwiseError | None:
        """Return the message for a negative dimension, for which JAX only has an assertion."""
        if (called := self.called) is None:
            return None
        names = ("split_axis", "concat_axis", "scatter_dimension")
        dims = {name: called.arguments[name] for name in names if name in called.arguments}
        if all(isinstance(number, int) and number >= 0 for number in dims.values()):
            return None
        return self._error(
            f"{called.name} with " + ", ".join(f"{name}={number}" for name, number in dims.items()),
            "This version of JAX counts the dimensions of an exchange from the front.",
            "numbers from 0; the last dimension is x.ndim - 1.",
        )

    def _of_a_collective(self) -> ShardwiseError | None:
        if self.called is None:
            return None
        name = self.called.name
        rule, remedy = COLLECTIVES.get(name, ("", ""))
        if self.called.arguments.get("tiled"):
            remedy = remedy.removeprefix(TILED)
        return self._error(f"{name}: {self.text}", rule, remedy)

    def _nameless(self) -> ShardwiseError | None:
        """Return the message for a collective without a valid axis name."""
        called = self.called
        if called is None:
            return None
        axes = called.arguments["axis_name"]
        names = axes if isinstance(axes, tuple | list) else (axes,)
        invalid = [
            name for name in names if not isinstance(name, str) and str(name) not in self.known
        ]
        if names and not invalid:
            return None
        available = _listed(self.known) or "none"
        phrase = f"names {invalid[0]!r}, which is no" if invalid else "names no"
        return self._error(
            f"{called.name} {phrase} axis of the mesh, which has {available}",
            "A collective runs over axes of the mesh, by their names.",
            f"jax.lax.{called.name}(..., {self.known[0]!r})"
            if self.known
            else "name an axis of the mesh of the shard_map around it.",
        )

    def _indivisible(self) -> ShardwiseError:
        lines = []
        names = list(messages.INDIVISIBLE_ARGUMENT.finditer(self.text))
        for match in messages.INDIVISIBLE.finditer(self.text):
            earlier = [name for name in names if name.start() < match.start()]
            argument = _argument(earlier[-1]) if earlier else "an argument"
            size, n = int(match["size"]), int(match["n"])
            below, above = size // n * n, -(-size // n) * n
            sizes = f"sizes that work are {below} or {above}" if below else f"that works is {above}"
            lines.append(
                f"{argument}: dimension {match['dim']} of size {size} is split over mesh axis "
                f"{match['axes']} of size {n}; the nearest {sizes}"
            )
        return self._error(
            "a dimension does not divide.\n  " + "\n  ".join(lines),
            "Every device gets an equal part.",
            "pad or trim the array to such a size, or choose a mesh that divides it.",
        )

    def _too_long(self, bullets: list[re.Match[str]]) -> ShardwiseError:
        first, extra = bullets[0], len(bullets) - 1
        numbers = (
            all(bullet["shape"].endswith("[]") for bullet in bullets) and "][" in first["path"]
        )
        name = f" ({first['name']})" if first["name"] else ""
        rank = len(re.findall(r"\d+", first["shape"].partition("[")[2]))
        return self._error(
            f"{first['path']}{name} is {first['shape']}, of {rank} dimension{'s' * (rank != 1)}, "
            f"and its spec {first['spec']} is for {first['length']} or more"
            + (f" (and {extra} more)" if extra else ""),
            "A spec has at most one entry for each dimension. To JAX a list or a tuple of "
            "numbers is that many scalars."
            if numbers
            else "A spec has at most one entry for each dimension.",
            "make it an array: jnp.asarray(x)."
            if numbers
            else "shorten the spec; for a scalar it is P().",
        )

    def _no_axis(self, axis: str) -> ShardwiseError:
        if axis not in self.known and axis in _jax.vmap_axes(self.frames):
            return self._error(
                f"axis {axis!r} is that of a vmap inside the shard_map",
                "JAX does not support such axes with check_vma.",
                "check_vma=False for this shard_map; or reduce over the dimension instead: "
                "x.sum(0) after the vmap.",
            )
        if axis not in self.known:
            names = ", ".join(map(repr, self.known)) or "none"
            return self._error(
                f"there is no mesh axis {axis!r} here; the mesh has {names}",
                "A collective or a spec names an axis of the mesh around it.",
                self._suggest_axis(axis),
            )
        if any(map(_jax.is_shard_map, self.files)):
            return self._error(
                f"the shard_map around this is not manual over {axis!r}",
                "Inside a shard_map with axis_names, collectives run over those axes only.",
                f"add {axis!r} to axis_names, or leave axis_names out.",
            )
        return self._error(
            f"a collective over {axis!r} is outside every shard_map",
            "Devices communicate inside a shard_map; outside, arrays are global.",
            "move it into the function that jax.shard_map maps, or leave it out.",
        )

    def _suggest_axis(self, axis: str) -> str:
        """Suggest another name, or a mesh that has the axis as well."""
        sizes = ", ".join(f"{name!r}: ..." for name in (axis, *self.known))
        suggestion = did_you_mean(axis, self.known, 0.5) or "name one of these."
        return f"{suggestion} Otherwise add it to the mesh: {{{sizes}}}."

    def _mixed_axes(self, names: list[str]) -> ShardwiseError | None:
        match = messages.MIXED_AXES.search(self.text)
        if match is None:
            return None
        varying = re.findall(r"\w+", match["varying"])
        along = [name for name in names if name in varying]
        invariant = [name for name in names if name not in varying]
        if not invariant:
            return None  # a cast that JAX refuses for another reason
        fixed_axes = _listed(invariant)
        axes = repr(along[0] if len(along) == 1 else tuple(along))
        return self._error(
            f"{match['name']} over {_listed(names)} of a value ({match['type']}) that differs "
            f"along {_listed(along)} but is the same along {fixed_axes}",
            "One collective takes axes along which its value differs, or axes along which it "
            f"is the same: along {fixed_axes} a sum counts the same value once for each device.",
            f"name only the axes along which it differs: jax.lax.{match['name']}(x, {axes}).",
        )

    def _spec_count(self, specs: str) -> ShardwiseError:
        noun = "argument" if specs == "in_specs" else "result"
        return self._error(
            f"{specs} do not match the {noun}s.\n  " + self.text.replace("\n", "\n  "),
            f"There is one spec for each {noun}, or one that serves all of them.",
            f"give {specs} as a tuple with one entry for each {noun}."
            + (" Do they have the order of the arguments?" if noun == "argument" else ""),
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _argument(match: re.Match[str]) -> str:
    name = f" ({match['name']})" if match["name"] else ""
    return f"{match['argument']}{name} of shape {match['shape']}"


TILED = "tiled=True; and "
"""The first words of a remedy, dropped if `tiled=True` was passed."""

_DIVIDES = (
    "pad or trim the dimension to a multiple of the number of devices along the axis, or name "
    "another one."
)

COLLECTIVES = {
    "psum_scatter": (
        "Each device keeps one of as many parts of scatter_dimension as there are devices along "
        "the axis: equal parts with tiled=True, otherwise single entries of a dimension as long as "
        "the axis.",
        f"{TILED}{_DIVIDES}",
    ),
    "all_to_all": (
        "Each device sends one of as many parts of split_axis as there are devices along the axis: "
        "equal parts with tiled=True, otherwise single entries of a dimension as long as the axis. "
        "They are concatenated along concat_axis.",
        f"{TILED}{_DIVIDES}",
    ),
    "pswapaxes": (
        "A dimension is exchanged with an axis of the mesh of the same length.",
        "jax.lax.all_to_all(x, axis_name, split_axis, concat_axis, tiled=True) for a multiple.",
    ),
    "all_gather": (
        "The parts of all devices are stacked along a new dimension axis=, or with tiled=True "
        "concatenated along an existing one.",
        "axis=0; a scalar has no dimension to tile: leave tiled= out.",
    ),
}
"""The rule of a collective about its operand, and the remedy, where JAX raises an error."""

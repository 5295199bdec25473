"""Translate JAX's errors about meshes and specs: add the line, the rule and the remedy.

Only errors raised by JAX itself are translated. Errors of the user's own code, and those of JAX
about something else (a shape, a traced value in an `if`), are raised unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from ... import _jax
from ..._base.errors import (
    ArgumentError,
    ShardingError,
    ShardwiseError,
    UnsupportedError,
    explain_error,
)
from ..._mesh import AbstractMesh, Mesh, near
from ..._program.collectives import exchange_in_a_batch, no_derivative
from .error_path import ErrorPath
from .rewordings import COLLECTIVES, SENTENCES, TILED

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


class _Translator(ErrorPath):
    """Translates an error, if it is JAX's and about the mesh."""

    def read(self) -> ShardwiseError | None:
        """Return the translated error; None if there is none."""
        if isinstance(self.error, _jax.RefusedError) or _jax.is_unmapped(self.error):
            is_refused = isinstance(self.error, _jax.RefusedError)
            problem, rule, remedy = self.error.args if is_refused else _jax.UNMAPPED
            return ShardingError(explain_error(problem, where=self.where, rule=rule, remedy=remedy))
        if not self.files or not _jax.is_own(self.files[-1]):
            return None
        if _jax.is_ragged_batch(self.error):
            return exchange_in_a_batch(self.where)
        if isinstance(self.error, NotImplementedError) and self._in_groups():
            return UnsupportedError(self._checked_groups())
        if nameless := self._nameless():
            return ShardingError(nameless)
        if match := _jax.PLAIN_NUMBER.search(self.text):
            return UnsupportedError(self._plain_number(match["value"]))
        if _jax.NO_DEVICES.search(self.text):
            return UnsupportedError(self._no_devices())
        if _jax.SPEC_WITHOUT_MESH.search(f"{self.text} {self.error.__cause__}"):
            return ShardingError(self._spec_without_mesh())
        if _jax.COMPILED.search(self.text):
            return UnsupportedError(self._compiled())
        in_a_body = any(map(_jax.is_shard_map, self.files))  # where devices have none either
        if not in_a_body and (match := _jax.NO_VALUES.search(self.text)):
            return UnsupportedError(self._no_values(match["name"]))
        if _jax.TRACED_STATIC.search(self.text):
            return ArgumentError(self._traced_static())
        if match := _jax.NO_DERIVATIVE.search(self.text):
            return no_derivative(match["name"], self.where)
        if isinstance(self.error, TypeError) and (match := _jax.NOT_AN_ARRAY.search(self.text)):
            return ArgumentError(self._not_an_array(match["kind"]))
        mapped = any(map(_jax.is_shard_map, self.inside))
        if mapped and (match := _jax.GIVEN_NO_ARRAY.search(self.text)):
            return ArgumentError(self._given_no_array(match["kind"]))
        message = self._about_the_mesh()
        return None if message is None else ShardingError(message)

    def _about_the_mesh(self) -> str | None:
        if isinstance(self.error, AssertionError):
            # With its check on, JAX asserts that the axis of a reduction is bound.
            axis = self.unbound()
            message = self._from_the_end()
            return message if message or axis is None else self._no_axis(axis)
        if isinstance(self.error, IndexError):
            return self._of_a_collective()
        if isinstance(self.error, ZeroDivisionError) and self._of_empty_groups():
            return self._empty_groups()
        if not isinstance(self.error, ValueError | NameError | TypeError):
            return None
        if _jax.INDIVISIBLE.search(self.text):
            return self._indivisible()
        if bullets := list(_jax.SPEC_TOO_LONG.finditer(self.text)):
            return self._too_long(bullets)
        if match := _jax.UNBOUND_AXIS.search(self.text) or _jax.SPEC_AXIS.search(self.text):
            return self._no_axis(match["axis"])
        if match := _jax.STATELESS_AXES.search(self.text):
            names = re.findall(r"'(\w+)'", match["axes"])
            missing = [name for name in names if name not in self.known]
            return self._no_axis(missing[0]) if missing else self._mixed_axes(names)
        for pattern, problem, rule, remedy in SENTENCES:
            if match := pattern.search(self.text):
                fields = {name: str(value) for name, value in match.groupdict().items()}
                location = self.body or self.where
                return explain_error(
                    problem.format(**fields),
                    where=location,
                    rule=rule,
                    remedy=remedy.format(**fields),
                )
        if match := _jax.SPEC_COUNT.search(self.text):
            return self._spec_count(match["specs"])
        if _jax.is_shard_map(self.files[-1]):
            return explain_error(self.text, where=self.where)
        return self._of_a_collective()

    # --- one kind each

    def _in_groups(self) -> bool:
        """Return whether JAX rejects groups of devices, which it does without a message."""
        return not self.text and bool(_jax.groups_given(self.frames[-1]))

    def _of_empty_groups(self) -> bool:
        called = self.called
        groups = called.arguments.get("axis_index_groups") if called else None
        return bool(groups) and not all(map(len, groups))

    def _empty_groups(self) -> str:
        return explain_error(
            "axis_index_groups has a group without devices",
            where=self.where,
            rule="Groups are of one size, and each device is in one of them.",
            remedy="leave the empty group out.",
        )

    def _from_the_end(self) -> str | None:
        """Return the message for a negative dimension, which this version of JAX asserts away."""
        if (called := self.called) is None:
            return None
        names = ("split_axis", "concat_axis", "scatter_dimension")
        dims = {name: called.arguments[name] for name in names if name in called.arguments}
        if all(isinstance(number, int) and number >= 0 for number in dims.values()):
            return None
        return explain_error(
            f"{called.name} with " + ", ".join(f"{name}={number}" for name, number in dims.items()),
            where=self.where,
            rule="This version of JAX counts the dimensions of an exchange from the front.",
            remedy="numbers from 0; the last dimension is x.ndim - 1.",
        )

    def _no_values(self, name: str) -> str:
        return explain_error(
            f"this asks an array for {name}, and the function is traced",
            where=self.where,
            rule="While a function is traced its arrays have types, but no values and no devices.",
            remedy=f"ask the result of the simulated function for {name}; in here, jax.typeof(x) "
            "has the type, and jax.block_until_ready(x) may stand.",
        )

    def _checked_groups(self) -> str:
        return explain_error(
            "a collective over groups of devices (axis_index_groups)",
            where=self.where,
            rule="JAX has no groups where it checks what differs between devices.",
            remedy="check_vma=False for this shard_map; or a mesh with an axis for the groups.",
        )

    def _of_a_collective(self) -> str | None:
        if self.called is None:
            return None
        name = self.called.name
        rule, remedy = COLLECTIVES.get(name, ("", ""))
        if self.called.arguments.get("tiled"):
            remedy = remedy.removeprefix(TILED)
        return explain_error(f"{name}: {self.text}", where=self.where, rule=rule, remedy=remedy)

    def _nameless(self) -> str | None:
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
        available = _listed([name for name in self.known if name != _jax.UNNAMED]) or "none"
        phrase = f"names {invalid[0]!r}, which is no" if invalid else "names no"
        return explain_error(
            f"{called.name} {phrase} axis of the mesh, which has {available}",
            where=self.where,
            rule="A collective runs over axes of the mesh, by their names.",
            remedy=f"jax.lax.{called.name}(..., {self.known[0]!r})"
            if self.known
            else "name an axis of the mesh of the shard_map around it.",
        )

    def _plain_number(self, value: str) -> str:
        return explain_error(
            f"{value}, a number of Python's, is given to a derivative of a shard_map, as a value "
            "or as a tangent",
            where=self.where,
            rule="JAX takes arrays there while it traces, under jax.jit as well.",
            remedy=f"jnp.asarray({value})",
        )

    def _indivisible(self) -> str:
        lines = []
        names = list(_jax.INDIVISIBLE_ARGUMENT.finditer(self.text))
        for match in _jax.INDIVISIBLE.finditer(self.text):
            earlier = [name for name in names if name.start() < match.start()]
            argument = _argument(earlier[-1]) if earlier else "an argument"
            size, n = int(match["size"]), int(match["n"])
            below, above = size // n * n, -(-size // n) * n
            sizes = f"sizes that work are {below} or {above}" if below else f"that works is {above}"
            lines.append(
                f"{argument}: dimension {match['dim']} of size {size} is split over mesh axis "
                f"{match['axes']} of size {n}; the nearest {sizes}"
            )
        return explain_error(
            "a dimension does not divide.\n  " + "\n  ".join(lines),
            where=self.where,
            rule="Every device gets an equal part.",
            remedy="pad or trim the array to such a size, or choose a mesh that divides it.",
        )

    def _too_long(self, bullets: list[re.Match[str]]) -> str:
        first, extra = bullets[0], len(bullets) - 1
        numbers = (
            all(bullet["shape"].endswith("[]") for bullet in bullets) and "][" in first["path"]
        )
        name = f" ({first['name']})" if first["name"] else ""
        rank = len(re.findall(r"\d+", first["shape"].partition("[")[2]))
        return explain_error(
            f"{first['path']}{name} is {first['shape']}, of {rank} dimension{'s' * (rank != 1)}, "
            f"and its spec {first['spec']} is for {first['length']} or more"
            + (f" (and {extra} more)" if extra else ""),
            where=self.where,
            rule="A spec has at most one entry for each dimension. To JAX a list or a tuple of "
            "numbers is that many scalars."
            if numbers
            else "A spec has at most one entry for each dimension.",
            remedy="make it an array: jnp.asarray(x)."
            if numbers
            else "shorten the spec; for a scalar it is P().",
        )

    def _not_an_array(self, kind: str) -> str:
        name = re.sub(r"<class '(.*)'>", r"\1", kind)
        return explain_error(
            f"the function returns something of type {name}",
            where=self.where,
            rule="A function that is traced returns arrays: one, or a pytree of them.",
            remedy="return what is computed, and keep the rest outside of the function.",
        )

    def _given_no_array(self, kind: str) -> str:
        return explain_error(
            f"this shard_map is given something of type {kind}",
            where=self.where,
            rule="A shard_map takes arrays, or pytrees of them: it splits them over the mesh.",
            remedy="pass arrays, in the order of in_specs; what is no array, its body closes over.",
        )

    def _no_axis(self, axis: str) -> str:
        if axis not in self.known and self.of_a_vmap(axis):
            return explain_error(
                f"axis {axis!r} is that of a vmap inside the shard_map",
                where=self.where,
                rule="JAX knows no such axis where it checks what differs between devices.",
                remedy="check_vma=False for this shard_map; or reduce over the dimension instead: "
                "x.sum(0) after the vmap.",
            )
        if self.known == (_jax.UNNAMED,):
            return explain_error(
                f"there is no axis {axis!r} here: the pmap around this does not name its own",
                where=self.where,
                rule="A collective in a pmap runs over the axis that axis_name= names.",
                remedy=f"jax.pmap(f, axis_name={axis!r})",
            )
        if axis not in self.known:
            names = ", ".join(map(repr, self.known)) or "none"
            return explain_error(
                f"there is no mesh axis {axis!r} here; the mesh has {names}",
                where=self.where,
                rule="A collective or a spec names an axis of the mesh around it.",
                remedy=self._axis_meant(axis),
            )
        if any(map(_jax.is_shard_map, self.files)):
            return explain_error(
                f"the shard_map around this is not manual over {axis!r}",
                where=self.where,
                rule="Inside a shard_map with axis_names, collectives run over those axes only.",
                remedy=f"add {axis!r} to axis_names, or leave axis_names out.",
            )
        return explain_error(
            f"a collective over {axis!r} stands outside every shard_map",
            where=self.where,
            rule="Devices meet inside a shard_map; outside, arrays are whole.",
            remedy="move it into the function that jax.shard_map maps, or leave it out.",
        )

    def _axis_meant(self, axis: str) -> str:
        """Suggest another name, or a mesh that has the axis as well."""
        sizes = ", ".join(f"{name!r}: ..." for name in (axis, *self.known))
        suggestion = near(axis, self.known) or "name one of these."
        return f"{suggestion} Otherwise add it to the mesh: {{{sizes}}}."

    def _mixed_axes(self, names: list[str]) -> str | None:
        match = _jax.MIXED_AXES.search(self.text)
        if match is None:
            return None
        varying = re.findall(r"\w+", match["varying"])
        along = [name for name in names if name in varying]
        invariant = [name for name in names if name not in varying]
        if not invariant:
            return None  # a cast that JAX refuses for another reason
        fixed_axes = _listed(invariant)
        axes = repr(along[0] if len(along) == 1 else tuple(along))
        return explain_error(
            f"{match['name']} over {_listed(names)} of a value ({match['type']}) that differs "
            f"along {_listed(along)} but is the same along {fixed_axes}",
            where=self.where,
            rule="One collective takes axes along which its value differs, or axes along which it "
            f"is the same: along {fixed_axes} a sum counts the same value once for each device.",
            remedy=f"name only the axes along which it differs: jax.lax.{match['name']}(x, "
            f"{axes}).",
        )

    def _spec_count(self, specs: str) -> str:
        noun = "argument" if specs == "in_specs" else "result"
        return explain_error(
            f"{specs} do not match the {noun}s.\n  " + self.text.replace("\n", "\n  "),
            where=self.where,
            rule=f"There is one spec for each {noun}, or one that serves all of them.",
            remedy=f"give {specs} as a tuple with one entry for each {noun}."
            + (
                " Is the order of the arguments that of the function?" if noun == "argument" else ""
            ),
        )

    def _spec_without_mesh(self) -> str:
        return explain_error(
            "a PartitionSpec is given here, and there is no mesh around",
            where=self.where,
            rule="A spec names axes of the mesh around it. A function that takes mesh= gets "
            "its mesh, and has none around it unless it sets one.",
            remedy="jax.NamedSharding(mesh, spec) in place of the spec, or with "
            "jax.set_mesh(mesh): around this.",
        )

    def _no_devices(self) -> str:
        request = "the devices of the mesh" if self.real else "a virtual mesh for devices"
        return explain_error(
            f"this asks {'for ' * self.real}{request} ({self.text.splitlines()[0]})",
            where=self.where,
            rule="The program is traced, not run, and sees the names and sizes of its mesh alone."
            if self.real
            else "A virtual mesh has names and sizes, and the program is traced, not run, on it.",
            remedy="use mesh.shape and mesh.size, jax.set_mesh(mesh) for a mesh around, and "
            "jax.sharding.get_abstract_mesh() to find it; make arrays and compile outside the "
            "function.",
        )

    def _compiled(self) -> str:
        return explain_error(
            "this lowers or compiles a program, or calls what .lower(...).compile() gives",
            where=self.where,
            rule="The function is traced, for meshes that have no devices: nothing can be compiled "
            "for them, and what is compiled cannot be traced.",
            remedy="call the jitted function itself here; lower and compile it outside, for a real "
            "mesh.",
        )

    def _traced_static(self) -> str:
        return explain_error(
            "an argument that is static in a jit or pmap is traced here",
            where=self.where,
            rule="The whole function is traced, and with it every argument that is not said to be "
            "static: numbers, too.",
            remedy="name it here as well: static_argnums=(1,) or static_argnames=(...), which "
            "sw.simulate, sw.check and sw.explain take as jax.jit does.",
        )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def _argument(match: re.Match[str]) -> str:
    name = f" ({match['name']})" if match["name"] else ""
    return f"{match['argument']}{name} of shape {match['shape']}"

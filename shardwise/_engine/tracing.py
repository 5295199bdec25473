"""Trace a function on a mesh to a program, once for each combination of argument types."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .. import _jax
from .._base.calls import called_wrongly, note_packed, parameter_names
from .._base.errors import ArgumentError, ShardingError, UnsupportedError, a_type
from .._base.mesh_argument import mesh_not_passed, refuse_no_mesh, takes_mesh
from .._jax.messages import RefusedError
from .._jax.types import unplaced, with_spec_on, without_sharding
from .._jax.virtual import Mapped, under, virtually
from .._mesh import AbstractMesh, MeshLike, abstract, one_mesh
from .._program import Body
from .argument_specs import (
    ArgumentSpecs,
    Leafwise,
    automatic,
    for_leaves,
    missing_specs,
    rejected_specs,
)
from .call import SimulatedProgram, trace
from .misuse import reading_errors, refuse_not_run, refuse_results
from .nnx_objects import Update, functionalize, name_argument, name_result, per_leaf
from .static import Bound, Static, bind
from .tree_structure import TreeStructure, flatten, is_function, is_whole, with_paths

EMPTY = AbstractMesh((), ())
GUESSES = 32
"""How many alternative specs are tried before an error asks for `in_specs`."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """A program, the values to run it on, and how to assemble its results."""

    program: SimulatedProgram
    values: list[Any]
    tree: TreeStructure
    """The tree of the results."""
    done: Callable[[Any], Any]
    argument_tree: TreeStructure
    """The tree of the arguments."""
    argument_paths: list[str]
    """A name for each array among the arguments."""
    specs: list[Any]
    """The spec of each array among the arguments, where it is known."""

    @functools.cached_property
    def plain(self) -> list[Any]:
        """Return the values as arrays that are on no mesh, to run the program's operations on.

        Their sharding is part of the program by now, and their types may name another mesh.
        """
        return list(map(unplaced, self.values))

    @property
    def constants(self) -> list[Any]:
        """Return the constants that the program closes over, as in `plain`."""
        return list(map(unplaced, self.values[: len(self.values) - self.argument_tree.num_leaves]))

    @property
    def argument_values(self) -> list[Any]:
        """Return the arrays among the arguments, as in `plain`."""
        return self.plain[len(self.values) - self.argument_tree.num_leaves :]

    def read(self) -> list[Any]:
        """Return the values, with the current contents of mutable refs."""
        refs = self.program.refs
        return [value[...] if i in refs else value for i, value in enumerate(self.values)]

    def finish(self, outs: list[Any]) -> Any:
        """Return the result of the function; refs and objects among the arguments are updated."""
        for position, last in zip(self.program.refs, outs[self.tree.num_leaves :], strict=True):
            self.values[position][...] = last
        return self.done(self.tree.unflatten(outs[: self.tree.num_leaves]))

    def name_of(self, path: tuple[Any, ...]) -> str:
        """Return the name of a path in the tree of results."""
        return name_result(self.done, path)

    @functools.cached_property
    def result_paths(self) -> list[str]:
        """Return a name for each result."""
        return [self.name_of(path) for path in self.tree.paths]


@dataclasses.dataclass(frozen=True)
class _FlatCall:
    """The arguments of a call as arrays, and how these are sharded on the mesh."""

    f: Callable[..., Any]
    bound: Bound
    pure: Callable[..., Any]
    values: Any
    done: Callable[[Any], Any]
    flat: list[Any]
    tree: TreeStructure
    types: tuple[Any, ...]
    layout: ArgumentSpecs

    def names(self) -> list[str]:
        """Return a name for each array."""
        return _names(self.bound, self.values, self.done, self.tree)

    def call(self, *flat: Any) -> tuple[list[Any], TreeStructure]:
        """Call the function with arrays alone."""
        result = self.pure(*self.tree.unflatten(flat))
        refuse_not_run(self.f, result)
        leaves, structure = flatten(result)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            raise RefusedError(
                "the function returns a jax.ShapeDtypeStruct, a shape without values",
                "A function that is traced returns arrays: one, or a pytree of them.",
                "return what is computed; jax.eval_shape(f, *args) has the shapes.",
            )
        return leaves, with_paths(structure, result)


def _names(bound: Bound, values: Any, done: Any, tree: TreeStructure) -> list[str]:
    paths = with_paths(tree, values).paths
    return [name_argument(done, path, parameter_names(bound.f)) for path in paths]


class Tracing:
    """A function on a mesh: traced once for each combination of argument types.

    With `alone` it has no mesh, and its arguments are treated as unsharded.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: MeshLike | None,
        in_specs: Any = None,
        static: Static | None = None,
        *,
        refs: bool = False,
        alone: bool = False,
    ):
        if hasattr(f, "__shardwise_case__"):
            raise _refuse_case(f)
        self.f, self.in_specs, self.static = f, in_specs, static or Static()
        self.mesh = None if mesh is None else one_mesh(mesh)
        self.refs, self.alone = refs, alone
        self.takes_mesh = mesh is not None and takes_mesh(f)
        self.mesh_around = None if self.mesh is None else abstract(self.mesh)
        self.known: dict[Any, Any] = {}
        self.mapped: list[Mapped] = []
        """The calls of `shard_map` in the last trace, also where that failed."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """Return the program for these arguments."""
        if self.takes_mesh:
            self._refuse_another(kwargs.get("mesh"))
            kwargs = {**kwargs, "mesh": self.mesh}
        elif self.mesh is None:
            refuse_no_mesh(self.f, args, kwargs)
        call = self._flatten(args, kwargs)
        flat, tree, done, layout = call.flat, call.tree, call.done, call.layout
        object_tree = done.tree if isinstance(done, Update) else None
        specs = tuple(layout.specs)
        key = (tree, object_tree, call.types, call.bound.key, specs, _jax.trace_context())
        entry = self.known.get(key)
        if entry is None:
            names = call.names()
            entry = *self._trace(call.call, flat, layout, names, (args, kwargs)), layout, names
            if not any(_jax.is_traced(const) for const in entry[1]):
                # A program that closes over tracers is valid for one call only.
                self.known[key] = entry
        program, consts, out_tree, layout, names = entry
        if program.refs and not self.refs:
            raise _refuse_refs()
        return Traced(program, [*consts, *flat], out_tree, done, tree, names, layout.specs)

    def specs_of(self, args: tuple[Any, ...]) -> Leafwise:
        """Return the spec of each array among the arguments: its own, or that in `in_specs`.

        It can be used as `in_specs` for other meshes with these axes, and for other values.
        """
        kwargs = {"mesh": self.mesh} if self.takes_mesh else {}
        return Leafwise(self._flatten(args, kwargs).layout.specs)

    def specified(self, args: tuple[Any, ...]) -> Tracing:
        """Return the same function with the spec of each of these arguments as its `in_specs`."""
        return Tracing(self.f, self.mesh, self.specs_of(args), self.static)

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _FlatCall:
        bound = bind(self.f, args, kwargs, self.static)
        _refuse_functions(bound)
        pure, values, done = functionalize(bound.f, bound.args, bound.kwargs)
        flat, tree = flatten(values)
        flat = [
            without_sharding(leaf) if self.alone else with_spec_on(self.mesh, leaf) for leaf in flat
        ]
        types = _types(flat, lambda: _names(bound, values, done, tree))
        layout = ArgumentSpecs(flat, self._specs(bound, values, done, tree), self.mesh)
        return _FlatCall(self.f, bound, pure, values, done, flat, tree, types, layout)

    def _refuse_another(self, mesh: Any) -> None:
        """Raise if a call passes another mesh than the one to run on."""
        if mesh is not None and abstract(mesh) != self.mesh_around:
            assert self.mesh_around is not None
            raise ShardingError(
                f"the call has mesh={dict(abstract(mesh).shape)}, and the function was created "
                f"for {dict(self.mesh_around.shape)}",
                where="mesh=",
                rule="A program runs on one mesh.",
                remedy="pass the mesh once: sw.simulate(f, mesh=mesh)(*args).",
            )

    def _specs(self, bound: Bound, values: Any, done: Any, tree: TreeStructure) -> list[Any]:
        """Return the spec in `in_specs` for each array among the arguments."""
        in_specs = self.in_specs
        if isinstance(in_specs, Leafwise) and len(in_specs) == tree.num_leaves:
            return list(in_specs)
        if in_specs is None or isinstance(in_specs, Leafwise):  # of another function's arguments
            return [None] * tree.num_leaves
        if isinstance(in_specs, tuple | list) and len(in_specs) == bound.count:
            in_specs = tuple(in_specs[i] for i in bound.places)  # without the static ones
        specs = for_leaves(in_specs, bound.args)
        kwargs = jax.tree.leaves(bound.kwargs, is_leaf=is_whole)
        return tree.arrays(per_leaf(done, values, [*specs, *[None] * len(kwargs)]))

    def _trace(
        self,
        flat_f: Callable[..., Any],
        flat: list[Any],
        layout: ArgumentSpecs,
        names: list[str],
        arguments: tuple[Any, Any],
    ) -> tuple[SimulatedProgram, list[Any], TreeStructure]:
        def run() -> tuple[SimulatedProgram, list[Any], TreeStructure]:
            traced, inferred = self._trace_with_specs(flat_f, flat, layout)
            if inferred is not None:
                # Without mesh=, the program uses its own mesh.
                open_to_all = (
                    layout if layout.mesh else ArgumentSpecs(flat, [None] * len(flat), inferred)
                )
                self._refuse_ambiguous_specs(flat_f, flat, open_to_all, traced[0], names)
            return traced

        try:
            return reading_errors(run, self.mesh)
        except Exception as error:
            clear_error = called_wrongly(self.f, *arguments, error)
            if clear_error is None and self.mesh is not None and not self.takes_mesh:
                clear_error = mesh_not_passed(self.f, error)
            if clear_error is not None:
                raise clear_error from error
            note_packed(error, arguments[0])
            if not layout.unspecified or not _jax.is_about_types(error):
                raise
            if not layout.infer_from(self._automatically(*arguments)):
                if isinstance(error, ShardingError):
                    raise
                raise rejected_specs(error, [names[i] for i in layout.unspecified]) from error
        return reading_errors(run, self.mesh)

    def _trace_with_specs(
        self, flat_f: Callable[..., Any], flat: list[Any], layout: ArgumentSpecs
    ) -> tuple[tuple[SimulatedProgram, list[Any], TreeStructure], AbstractMesh | None]:
        """Trace with these specs; also return the mesh of a `shard_map` that infers specs."""
        forms: list[TreeStructure] = []

        def leaves(*flat: Any) -> list[Any]:
            outs, structure = flat_f(*flat)
            refuse_results(self.f, outs)
            forms.append(structure)
            return outs

        # JAX names the function and its line in errors about traced values.
        leaves.__wrapped__ = self.f  # pyright: ignore[reportFunctionMemberAccess]
        with self._ambient(), virtually(self.mesh) as notes:
            self.mapped = notes.mapped
            program, consts = trace(leaves, *layout.types(flat))
        return (program, consts, forms[-1]), notes.inferred

    def _refuse_ambiguous_specs(
        self,
        flat_f: Callable[..., Any],
        flat: list[Any],
        layout: ArgumentSpecs,
        program: SimulatedProgram,
        names: list[str],
    ) -> None:
        """Raise if the program depends on how arguments without a spec are sharded.

        Each argument without a spec is sharded in every other way that divides it, and the program
        traced with that.
        """
        specs = _jax.specs_in(program.jaxpr)
        alternatives = {i: list(layout.alternatives(i, flat[i])) for i in layout.unspecified}
        if sum(map(len, alternatives.values())) > GUESSES:
            raise missing_specs([names[i] for i, layouts in alternatives.items() if layouts])
        for i, layouts in alternatives.items():
            for alternative in layouts:
                try:
                    (candidate, _, _), _ = self._trace_with_specs(flat_f, flat, alternative)
                except Exception:  # It cannot be sharded that way.
                    continue
                if _jax.specs_in(candidate.jaxpr) != specs:
                    raise missing_specs([names[i]])

    def _automatically(self, args: Any, kwargs: Any) -> Body:
        """Return the program on the same mesh with Auto axes, where any sharding is valid."""
        assert self.mesh_around is not None
        kwargs = {name: value for name, value in kwargs.items() if value is not self.mesh}
        tracing = Tracing(self.f, automatic(self.mesh_around), None, self.static)
        try:
            return tracing(args, kwargs).program.body
        except Exception:  # It may need Explicit axes.
            return Body([], [], [])

    def _ambient(self) -> contextlib.AbstractContextManager[None]:
        """Set the ambient mesh of the function, unless the function takes it as an argument."""
        if self.mesh_around is None:
            return contextlib.nullcontext()
        if not self.takes_mesh:
            return under(self.mesh_around)
        current = jax.sharding.get_abstract_mesh()
        return contextlib.nullcontext() if current in (EMPTY, self.mesh_around) else under(None)


def _refuse_case(declared: Any) -> ArgumentError:
    name = declared.name
    return ArgumentError(
        f"{name} is a case, not a function: it declares a program",
        where=f"@sw.case, line {declared.line}",
        rule="Calling a case returns the function and its arguments.",
        remedy=f"f, args = {name}(), then f, *args in its place; "
        f"or run it as declared: shardwise check FILE.py:{name}",
    )


def _refuse_refs() -> UnsupportedError:
    return UnsupportedError(
        "the function takes or closes over a mutable ref",
        where="an argument (jax.Ref)",
        rule="A program that runs on several meshes must start from the same values each time.",
        remedy="pass the value and create the ref inside: jax.new_ref(value).",
    )


def _types(flat: list[Any], names: Callable[[], list[str]]) -> tuple[Any, ...]:
    types = []
    for index, leaf in enumerate(flat):
        try:
            aval = jax.typeof(leaf)
        except (TypeError, OverflowError) as error:
            raise _no_array(names()[index], leaf, error) from error
        types.append((aval, getattr(aval, "weak_type", False)))
    return tuple(types)


def _refuse_functions(bound: Bound) -> None:
    """Raise for a function as an argument: it would not be part of the program's key."""
    names = parameter_names(bound.f)
    arguments = (
        (names[i] if i < len(names) else f"args[{i}]", x) for i, x in enumerate(bound.args)
    )
    for name, value in (*arguments, *bound.kwargs.items()):
        if is_function(value):
            raise _no_array(name, value)


def _no_numbers(name: str, leaf: Any) -> ArgumentError:
    """Return the error for a NumPy array of a dtype that JAX does not support."""
    remedy = "encode its elements as integers or floats first."
    if leaf.dtype == object:
        remedy = (
            "np.stack(x) if its elements are arrays of one shape, np.asarray(x, np.float32) if "
            "they are numbers; rows of different lengths need padding."
        )
    return ArgumentError(
        f"{name} is a NumPy array of dtype {leaf.dtype}, of shape {list(leaf.shape)}",
        where="an argument",
        rule="The elements of an array are booleans, integers, floats or complex numbers.",
        remedy=remedy,
    )


def _no_array(name: str, leaf: Any, error: Exception | None = None) -> ArgumentError:
    argument = name.split("[")[0].split(".")[0]
    if isinstance(leaf, np.ndarray | np.generic):
        return _no_numbers(name, leaf)
    return ArgumentError(
        f"{name} is {a_type(leaf)}" + (f", {error}" if isinstance(error, OverflowError) else ""),
        where="an argument",
        rule="Arguments are pytrees of arrays and numbers, or static.",
        remedy=f'static_argnames="{argument}" makes it a constant of the program.',
    )

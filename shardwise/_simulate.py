"""`simulate`: what a sharded function returns on a mesh, computed on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from . import _jax
from ._call import Program, call, trace
from ._errors import ShardingError, UnsupportedError, explain_error
from ._lower import Pace
from ._mesh import AbstractMesh, Mesh, abstract, is_count
from ._misuse import reading_errors
from ._objects import name_argument, name_result, purely

SHARE = 0.25
"""The share of the device's memory that `at_once="auto"` lets the shards in flight take."""


def simulate(
    f: Callable[..., Any],
    *,
    mesh: Mesh | AbstractMesh | None = None,
    at_once: int | str = 1,
) -> Callable[..., Any]:
    """Give the function that computes on one device what `f` returns on a mesh.

    `f` is any JAX function with `jax.shard_map` somewhere inside: under `jit`, `grad`, `vmap`,
    in a library, over a virtual or a real mesh. The result can itself be jitted, differentiated
    and batched; its derivatives are those of `f` on the mesh. Like `jax.jit`, it traces `f` once
    for each combination of argument types.

    Args:
        f: The function. Its arguments and results are pytrees of arrays; Flax NNX objects among
            the arguments are updated in place.
        mesh: The mesh to run on. If `f` takes a keyword `mesh`, it is given it; otherwise `f`
            runs under it as the ambient mesh. Left out, `f` has its own mesh.
        at_once: How many shards to compute at once. 1 takes the least memory, more is faster up
            to a point; `"auto"` takes as many as fit into a quarter of the device's memory.

    Raises:
        DeadlockError: When called: some devices wait in a collective that others never reach.
        ShardingError: When called: mesh, specs and arrays do not fit each other.
        UnsupportedError: When called: the program uses something that cannot be simulated.

    Example:
        ```python
        import jax, jax.numpy as jnp
        import shardwise as sw
        from jax.sharding import PartitionSpec as P

        def total(x, *, mesh):
            body = lambda part: jax.lax.psum(part.sum(), "data")
            return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

        sw.simulate(total, mesh=sw.mesh(data=8))(jnp.arange(16.0))  # 120.0
        ```
    """
    if not callable(f):
        raise TypeError(
            explain_error(
                f"f is a {type(f).__name__}",
                where="sw.simulate",
                rule="simulate takes a function and gives a function.",
                remedy="sw.simulate(f, mesh=mesh)(*args)",
            )
        )
    _check_at_once(at_once)
    tracing = Tracing(f, mesh, refs=True)

    @functools.wraps(f)
    def simulated(*args: Any, **kwargs: Any) -> Any:
        traced = tracing(args, kwargs)
        return traced.finish(call(traced.program, _pace(at_once), traced.read()))

    return simulated


@dataclasses.dataclass(frozen=True)
class Traced:
    """A program, the values to run it on, and what to make of its results."""

    program: Program
    values: list[Any]
    tree: Any
    done: Callable[[Any], Any]
    given: Any
    """The tree of the arguments."""

    def read(self) -> list[Any]:
        """The values, with what mutable refs among them hold now."""
        refs = self.program.refs
        return [value[...] if i in refs else value for i, value in enumerate(self.values)]

    def finish(self, outs: list[Any]) -> Any:
        """The result of the function, with refs and objects among its arguments updated."""
        for position, last in zip(self.program.refs, outs[self.tree.num_leaves :], strict=True):
            self.values[position][...] = last
        return self.done(jax.tree.unflatten(self.tree, outs[: self.tree.num_leaves]))

    def name_of(self, path: tuple[Any, ...]) -> str:
        """A path in the tree of results, in words."""
        return name_result(self.done, path)

    @functools.cached_property
    def result_paths(self) -> list[str]:
        """A name for each result."""
        return [self.name_of(path) for path in _paths(self.tree)]

    def argument_paths(self, names: Sequence[str]) -> list[str]:
        """A name for each argument; `names` are those of the positional parameters."""
        return [name_argument(self.done, path, names) for path in _paths(self.given)]


def _paths(tree: Any) -> list[tuple[Any, ...]]:
    numbered = jax.tree.unflatten(tree, list(range(tree.num_leaves)))
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(numbered)]


class Tracing:
    """A function on a mesh: traced once for each combination of argument types."""

    def __init__(
        self, f: Callable[..., Any], mesh: Mesh | AbstractMesh | None, *, refs: bool = False
    ):
        self.f, self.mesh, self.refs = f, mesh, refs
        self.takes_mesh = mesh is not None and _takes_mesh(f)
        around = None if mesh is None else abstract(mesh)
        self.around = None if self.takes_mesh else around
        self.known: dict[Any, Any] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
        """The program for these arguments."""
        if self.takes_mesh:
            kwargs = {"mesh": self.mesh, **kwargs}
        static = {k: v for k, v in kwargs.items() if isinstance(v, Mesh | AbstractMesh)}
        arrays = {k: v for k, v in kwargs.items() if k not in static}
        pure, values, done = purely(functools.partial(self.f, **static), args, arrays)
        flat, tree = jax.tree.flatten(values)

        def flat_f(*flat: Any) -> Any:
            return pure(*jax.tree.unflatten(tree, flat))

        key = (tree, _types(flat, tree), tuple(sorted(static.items())), _jax.trace_context())
        found = self.known.get(key)
        if found is None:
            with _ambient(self.around):
                found = reading_errors(lambda: trace(flat_f, *flat), self.mesh)
            if not any(_jax.is_traced(const) for const in found[1]):
                # Closed-over tracers belong to one call alone; all else serves the next one too.
                self.known[key] = found
        program, consts, out_tree = found
        if program.refs and not self.refs:
            raise _refuse_refs()
        return Traced(program, [*consts, *flat], out_tree, done, tree)


def _refuse_refs() -> UnsupportedError:
    return UnsupportedError(
        explain_error(
            "the function takes or closes over a mutable ref",
            where="an argument (jax.Ref)",
            rule="What is run on several meshes has to start from the same values each time.",
            remedy="pass the value and make the ref inside: jax.new_ref(value).",
        )
    )


def _takes_mesh(f: Callable[..., Any]) -> bool:
    own = _parameters(f, follow_wrapped=False)
    passes_on = own is None or any(p.kind is p.VAR_KEYWORD for p in own.values())
    if passes_on:
        # A decorator that hands on what it is given takes what the function inside takes.
        own = _parameters(f, follow_wrapped=True)
    mesh = (own or {}).get("mesh")
    return mesh is not None and mesh.kind is not mesh.POSITIONAL_ONLY


def _parameters(f: Callable[..., Any], follow_wrapped: bool) -> Mapping[str, Any] | None:
    try:
        return inspect.signature(f, follow_wrapped=follow_wrapped).parameters
    except (TypeError, ValueError):
        return None


@contextlib.contextmanager
def _ambient(mesh: AbstractMesh | None) -> Iterator[None]:
    if mesh is None:
        yield
    else:
        with jax.sharding.use_abstract_mesh(mesh):
            yield


def _types(flat: list[Any], tree: Any) -> tuple[Any, ...]:
    types = []
    for index, leaf in enumerate(flat):
        try:
            aval = jax.typeof(leaf)
        except TypeError as error:
            paths = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, flat))[0]
            raise TypeError(
                explain_error(
                    f"{jax.tree_util.keystr(paths[index][0])} is a {type(leaf).__name__}",
                    where="an argument of a simulated function (positional, keyword)",
                    rule="Arguments are pytrees of arrays and numbers.",
                    remedy="bind everything else first: functools.partial(f, option=...).",
                )
            ) from error
        types.append((aval, getattr(aval, "weak_type", False)))
    return tuple(types)


def _check_at_once(at_once: Any) -> None:
    if at_once != "auto" and not is_count(at_once):
        raise ShardingError(
            explain_error(
                f"at_once is {at_once!r}",
                where="sw.simulate",
                rule="The number of shards computed at once is a positive whole number or 'auto'.",
                remedy="at_once=1 takes the least memory, at_once='auto' as many shards as fit.",
            )
        )


def _pace(at_once: int | str) -> Pace:
    if at_once == "auto":
        return Pace(None, SHARE * _memory())
    return Pace(int(at_once))


@functools.cache
def _memory() -> float:
    """Bytes of memory of the device that the simulation runs on."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

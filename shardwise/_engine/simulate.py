"""`simulate`: compute on one device what a sharded function returns on a mesh."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax

from .._base.calls import DEVICES, public
from .._base.errors import ArgumentError, a_type, name_of
from .._base.mesh_argument import without_mesh
from .._mesh import MeshLike, check_at_once, one_device
from .call import call
from .lower import Choice, Pace, choosing, machine, room
from .static import Static
from .tracing import Tracing
from .unused_mesh import warn_if_unused


@public(
    "sw.simulate",
    devices=DEVICES,
    more="pass the mesh by name, and the arguments to the result: sw.simulate(f, mesh=mesh)(*args)",
)
def simulate(
    f: Callable[..., Any],
    *,
    mesh: MeshLike | None = None,
    at_once: int | str = 1,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Simulated:
    """Return a function that computes on one device what `f` returns on a mesh.

    `f` is any JAX function with `jax.shard_map` somewhere inside: under `jit`, `grad`, `vmap`,
    in a library, over a virtual or a real mesh. The result can itself be jitted, differentiated
    and batched; its derivatives are those of `f` on the mesh. Like `jax.jit`, it traces `f` once
    for each combination of argument types.

    Args:
        f: The function. Its arguments and results are pytrees of arrays; Flax NNX objects among
            the arguments are updated in place.
        mesh: The mesh to run on: `sw.mesh(data=8)`, a real one, or `{"data": 8}`. If `f` has a
            parameter `mesh`, the mesh is passed to it; otherwise `f` runs under it as the ambient
            mesh. By default `f` uses its own mesh.
        at_once: How many shards to compute at once. 1 takes the least memory, more is faster up
            to a point; `"auto"` takes about the time of the unsharded program in a quarter of
            its memory. `plan` reports how many shards that are, and why.
        in_specs: How the arguments are sharded on a mesh with Explicit axes, where that is part of
            their types: a `PartitionSpec` for each positional argument, or a prefix of its tree,
            or one for all. With None, an array that has a sharding keeps it, and otherwise the
            `in_specs` of the `shard_map` that takes the argument apply.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.

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
        raise ArgumentError(
            f"f is {a_type(f)}",
            where="sw.simulate",
            rule="simulate takes a function and returns a function.",
            remedy="sw.simulate(f, mesh=mesh)(*args)",
        )
    check_at_once(at_once, "sw.simulate")
    static = Static.of(static_argnums, static_argnames)
    return Simulated(f, Tracing(f, mesh, in_specs, static, refs=True), static, at_once)


class Simulated:
    """The function that `simulate` returns."""

    def __init__(
        self, f: Callable[..., Any], tracing: Tracing, static: Static, at_once: int | str
    ) -> None:
        functools.update_wrapper(self, f)
        # After update_wrapper, which copies the attributes of f, possibly another Simulated.
        self._f, self._tracing, self._static, self._at_once = f, tracing, static, at_once
        if tracing.takes_mesh:
            self.__signature__ = without_mesh(f)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute what the function returns on the mesh."""
        tracing = self._tracing
        first = not tracing.known
        traced = tracing(args, kwargs)
        if first and tracing.mesh_around is not None:
            single_mesh = one_device(tracing.mesh_around) if tracing.takes_mesh else None
            bare = Tracing(self._f, single_mesh, tracing.in_specs, static=self._static, refs=True)
            warn_if_unused(
                self._f, tracing.mesh_around, traced.program, lambda: bare(args, kwargs).program
            )
        try:
            outs = call(traced.program, _pace(self._at_once), traced.read())
        except TypeError as error:
            if any(isinstance(value, jax.ShapeDtypeStruct) for value in traced.values):
                raise _refuse_shapes() from error
            raise
        return traced.finish(outs)

    def plan(self, *args: Any, **kwargs: Any) -> ShardPlan:
        """Return how the shards would be computed for these arguments, without running anything."""
        traced = self._tracing(args, kwargs)
        pace = _pace(self._at_once)
        with choosing() as choices:
            jax.eval_shape(lambda *values: traced.program.run(values, pace), *traced.read())
        return ShardPlan(tuple(choices))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind it to an object, as a function in a class is."""
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        mesh = self._tracing.mesh_around
        suffix = "" if mesh is None else f", mesh={dict(mesh.shape)}"
        return f"sw.simulate({name_of(self._f)}{suffix})"


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """How many shards are computed at once, for each loop over shards of a program."""

    loops: tuple[Choice, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.loops)) or "There is no loop over shards."


def _refuse_shapes() -> ArgumentError:
    return ArgumentError(
        "an argument is a jax.ShapeDtypeStruct, which has no values",
        where="a simulated function",
        rule="A simulated function computes values.",
        remedy="pass an array, or compute only shapes: jax.eval_shape(simulated, x).",
    )


def _pace(at_once: int | str) -> Pace:
    if at_once == "auto":
        return Pace(None, room(), machine())
    return Pace(int(at_once))

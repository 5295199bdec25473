"""A small instance of a program that is too large to run, and whether its results differ.

All sizes of the arguments are halved together, so that equal sizes stay equal and ratios are kept.
The instance is traced first and only run if it is small: a program may have sizes of its own that
do not shrink with its arguments. It is another program than the one to prove, so it refutes nothing
by itself; together with a share that is used as if it were the whole, it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._base.errors import ShardwiseError
from ..._engine.simulate import simulate
from ..._engine.tracing import Tracing
from ..._jax.types import unplaced
from ..._meaning import step
from ..._mesh import AbstractMesh, one_device
from ..._program import Body, Leaf, Op, Scan, shape_of, walk

SMALL = 1 << 18
"""The maximum number of elements in the arguments of an instance."""

WORK = 1 << 31
"""The maximum number of multiplications to run, for all devices and iterations together."""

MEMORY = 1 << 26
"""The maximum number of elements of any value, on all devices together."""

OPERATIONS = 2000
"""The maximum number of operations: larger programs take too long to compile."""

TRIES = 2
"""The maximum number of instances to try."""

DIFFERS = 1e-2
"""Results that differ by more than this, relative to the largest, differ not just by rounding."""


class Unaffordable(Exception):
    """The program would take too much memory or time."""


def affordable(traced: Any, mesh: AbstractMesh) -> bool:
    """Return whether a traced program is small enough to be run here."""
    body = traced.program.body
    if sum(1 for _ in walk(body.ops)) > OPERATIONS:
        return False
    try:
        return _work(body, mesh.size) <= WORK
    except Unaffordable:
        return False


def _work(body: Body, devices: int) -> int:
    """Return the approximate number of multiplications in a program."""
    return sum(_work_of(op, devices) for op in body.ops)


def _work_of(op: Op, devices: int) -> int:
    sizes = [math.prod(var.shape) * devices for var in op.outs]
    if any(size > MEMORY for size in sizes):
        raise Unaffordable
    times = op.length if isinstance(op, Scan) else 1
    work = sum(sizes)
    if isinstance(op, Leaf) and op.name == "dot_general":
        ((contracted, _), _) = op.params["dimension_numbers"]
        work *= math.prod(shape_of(op.ins[0])[d] for d in contracted)
    if isinstance(op, Leaf) and op.name == "conv_general_dilated":
        work *= max(1, math.prod(shape_of(op.ins[1])))
    return work + times * sum(_work(body, devices) for body in op.bodies)


def instances(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments with their sizes halved until they are small."""
    tries = 0
    for times in range(1, 24):
        try:
            smaller = jax.tree.map(lambda x: _cut_down(x, times), args)
        except Exception:  # a pytree class may check the sizes of its leaves
            continue
        if elements(smaller) <= SMALL:
            yield smaller
            tries += 1
        if tries == TRIES:
            return


def elements(args: Any) -> int:
    """Return the number of elements in the arguments."""
    return sum(math.prod(getattr(x, "shape", ())) for x in jax.tree.leaves(args))


def _cut_down(x: Any, times: int) -> Any:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return x
    shape = tuple(_halved(size, times) for size in x.shape)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, x.dtype)
    return unplaced(x)[tuple(slice(size) for size in shape)]


def _halved(size: int, times: int) -> int:
    for _ in range(times):
        if size % 4 or size <= 4:
            break  # the remaining size has to divide by two devices
        size //= 2
    return size


def differing(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AbstractMesh,
    reference: Callable[..., Any] | None,
    in_specs: Any = None,
) -> frozenset[str] | None:
    """Return the paths of results that differ on a small instance; None if none can be run."""
    one_mesh = one_device(mesh)
    for smaller in instances(args):
        try:
            traced = Tracing(f, mesh, in_specs)(smaller, {})
            plain = Tracing(f, one_mesh, in_specs)(smaller, {}) if reference is None else None
            if not affordable(traced, mesh) or not (plain is None or affordable(plain, one_mesh)):
                continue
            drawn = _drawn(smaller)
            base = simulate(f, mesh=one_mesh, in_specs=in_specs) if reference is None else reference
            with step():
                got = jax.tree.leaves(jax.jit(simulate(f, mesh=mesh, in_specs=in_specs))(*drawn))
            with step():
                want = jax.tree.leaves(jax.jit(base)(*drawn))
        except (ShardwiseError, TypeError, ValueError, AssertionError, RuntimeError, MemoryError):
            continue
        rows = zip(traced.result_paths, got, want, strict=True)
        return frozenset(path for path, a, b in rows if _far(a, b))
    return None


def _far(got: Any, want: Any) -> bool:
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        return True
    a, b = a.astype(complex), b.astype(complex)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False  # an overflow proves nothing
    largest = float(np.max(np.abs(b), initial=0.0))
    return bool(np.max(np.abs(a - b), initial=0.0) > DIFFERS * max(largest, 1e-30))


def _drawn(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Draw random numbers for the shapes among the arguments."""
    rng = np.random.default_rng(0)

    def one(x: Any) -> Any:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return x
        if jnp.issubdtype(x.dtype, jnp.inexact):
            scale = 1 / math.sqrt(max(1, x.shape[-2] if len(x.shape) > 1 else 1))
            return jnp.asarray(rng.normal(size=x.shape) * scale, x.dtype)
        if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, 2, x.shape), x.dtype)
        raise TypeError(f"no numbers are drawn for {x.dtype}")

    return jax.tree.map(one, args)

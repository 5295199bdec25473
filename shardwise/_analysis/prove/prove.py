"""`sw.prove`: read a program on a mesh and on one device, and compare the meanings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ..._base.calls import DEVICES, public
from ..._base.doing import Progress, showing_progress
from ..._base.errors import ArgumentError, ShardingError, a_type, name_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import within
from ..._mesh import AbstractMesh, one_device
from ..check import AnySize, Meshes, wanted_meshes
from .judge import decided, judged
from .numbers import Numbers, try_numbers
from .proof import Proof
from .reading import ReadProgram
from .sizes import read_each, read_every

SECONDS = 25.0
"""The deadline of all parts together, so that the last step ends within `LIMIT` seconds."""


@public("sw.prove", devices=DEVICES, expected="reference= is what is right.")
def prove(
    f: Callable[..., Any],
    *args: Any,
    mesh: Meshes | None = None,
    reference: Callable[..., Any] | None = None,
    run: bool = True,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    progress: Progress = None,
) -> Proof:
    """Prove that `f` returns the same on a mesh as on one device, for all inputs.

    A proof runs nothing: `f` is traced on the mesh and on one device, and every value is followed
    as an expression over the whole arguments. So shapes are enough as arguments, and the mesh may
    be larger than any machine. A proof is valid for the given sizes of the mesh and of the
    arguments only: a proof on 8 devices does not cover 16. With `mesh={"data": "n"}` it covers
    every size of `data` that divides the dimensions that `in_specs` cut along it, each read by
    itself. It is in real arithmetic: rounding and the order of sums are ignored, and casts between
    floating-point types count as exact.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, it is
            passed the mesh; otherwise the mesh is the ambient mesh.
        *args: The arguments of `f`, or their shapes: pytrees of arrays or of
            `jax.ShapeDtypeStruct`s, Flax NNX objects.
        mesh: The mesh, or axis names each with a size or a list of sizes:
            `{"data": [1, 2, 4, 8]}` tries all. A list of meshes tries each. A letter stands for
            every size that divides: `{"data": "n"}`. Axes with the same letter have the same size.
            It is required.
        reference: A function of the same arguments for one device. By default, `f` on a mesh whose
            axes have size 1.
        run: Whether to run the program on small numbers where it is not proved, to find a
            counter-example.
        in_specs: The sharding of the arguments on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.
        progress: How to report progress: None shows a temporary line if there is a terminal, True
            also prints lines if there is none, False reports nothing. A function is called with the
            message: `progress=print`.

    Returns:
        The proof: `"proved"`, `"refuted"` with the cause and its line, or `"unknown"` with the line
        up to which the program could be followed.

    Raises:
        ArgumentError: There is no `mesh`.
        ShardingError: The program cannot be traced on one of the meshes: a size does not divide.
        UnsupportedError: The program uses something that is not supported.

    Example:
        ```python
        proof = sw.prove(step, params, batch, mesh=sw.mesh(data=64, model=8))
        assert proof, proof
        ```
    """
    if not callable(f):
        raise ShardingError(
            f"f is {a_type(f)}",
            where="sw.prove",
            rule="prove takes a function and its arguments.",
            remedy="sw.prove(f, *args, mesh=mesh)",
        )
    if reference is not None and not callable(reference):
        raise ArgumentError(
            f"reference is {a_type(reference)}",
            where="sw.prove",
            rule="A proof is for all inputs: the reference is a function of the same arguments.",
            remedy="sw.check(f, *args, mesh=mesh, reference=value) compares with one value.",
        )
    meshes = AnySize.of(mesh, "prove") or wanted_meshes(mesh, "prove", args)
    options = in_specs, Static.of(static_argnums, static_argnames)
    with showing_progress(f"proving {name_of(f)}", progress), within(SECONDS):
        return _prove(f, args, meshes, reference, run is not False, options)


def _prove(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: list[AbstractMesh] | AnySize,
    reference: Callable[..., Any] | None,
    run: bool,
    options: tuple[Any, Static],
) -> Proof:
    one_mesh = meshes.one if isinstance(meshes, AnySize) else one_device(meshes[0])
    in_specs, static = options
    # The smaller arguments of a run carry no sharding, so it is taken from the arguments here.
    options = Tracing(f, one_mesh, in_specs, static).specs_of(args), static
    alone = Tracing(f, one_mesh, *options)
    itself = reference is None
    base = alone if itself else Tracing(reference, None, static=static, alone=True)
    began = time.monotonic()
    plain = ReadProgram.of(base, one_mesh, args)
    seconds = time.monotonic() - began
    every, not_reached = None, ()
    if isinstance(meshes, AnySize):
        every = meshes.every(alone(args, {}).program.body)
        programs, rows, every = read_every(
            meshes, every, lambda mesh: Tracing(f, mesh, *options), args, plain, itself, seconds
        )
    else:
        programs, rows, not_reached = read_each(
            meshes, lambda mesh: Tracing(f, mesh, *options), args, plain, itself
        )
    numbers = Numbers()
    # A run on a mesh where all is proved would not help the other meshes.
    unproved = [*(row.mesh for row in rows if row.gaps or row.waits), *not_reached]
    if run and unproved:
        settled = all(map(decided, rows)) and not not_reached
        numbers = try_numbers(f, args, unproved, reference, settled, options)
    return judged(f, args, rows, plain, programs, numbers, reference, every, not_reached)

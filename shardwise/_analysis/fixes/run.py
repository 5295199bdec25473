"""The public function `check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..._base.calls import DEVICES, public
from ..._base.doing import Progress, showing_progress
from ..._base.errors import ShardingError, name_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._mesh import AbstractMesh, one_device
from ..check import (
    AnySize,
    Meshes,
    Verdict,
    examine,
    validate,
    verdict_unsharded,
    wanted_meshes,
)
from .rejected import fixed_if_rejected
from .search import fixed


@public(
    "sw.check",
    devices=DEVICES,
    tol="rtol= and atol= are the tolerances.",
    expected="reference= is what is right.",
)
def check(
    f: Callable[..., Any],
    *args: Any,
    mesh: Meshes | None = None,
    reference: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    all_meshes: bool = False,
    fix: bool = True,
    progress: Progress = None,
) -> Verdict:
    """Check that `f` is right on any number of devices, and locate the line if it is not.

    Analyses `f` on every mesh, and runs it, simulated, on the largest mesh and on those where it is
    not proved right. Each result is compared with that on one device, or with `reference`. A
    program without `shard_map` is not run, unless there is a reference.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, the
            mesh is passed to it; otherwise the mesh is the ambient mesh.
        *args: Its arguments: pytrees of arrays, Flax NNX objects. They are not modified. For a
            `jax.ShapeDtypeStruct`, or an object made by `nnx.eval_shape`, values are drawn.
        mesh: Axis names, each with a size or a list of sizes: `{"data": [1, 2, 4, 8]}`. With
            several axes every combination is tried. Also a mesh, or a list of meshes with the same
            axes. A letter, `{"data": "n"}`, is every size up to 8 that divides, as in `sw.prove`.
            Required, as a keyword.
        reference: What is right: a function of the same arguments, or its result. By default, the
            result on one device.
        rtol: An element may differ by `atol + rtol * |reference|`. Without `rtol` and `atol`, by a
            millionth of itself (1e-10 for results declared float64): programs are evaluated in
            float64, whatever dtypes they declare.
        atol: See `rtol`.
        seed: The seed of drawn values.
        in_specs: How the arguments are sharded on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.
        all_meshes: Whether to run on every mesh. By default, the largest mesh runs first, and if it
            is wrong, smaller meshes are decided by analysis; those of a long program that cannot be
            decided this way are listed in `verdict.not_run`.
        fix: Whether to search for an edit of the source that makes a wrong program right. It is
            verified before it is shown, and stored in `finding.fix`.
        progress: Where to show progress: None for a temporary line on a terminal, True for lines
            in other outputs too, False for nothing, or a function that is called with each
            message: `progress=print`.

    Returns:
        The verdict: true if the program is right on every mesh.

    Raises:
        ArgumentError: There is no `mesh`.
        ShardingError: The program cannot run on one of the meshes, for example because an axis
            size does not divide a dimension.
        UnsupportedError: The program uses something that cannot be simulated.
        ShardwiseError: An option is invalid.

    Example:
        ```python
        verdict = sw.check(step, params, batch, mesh={"data": [1, 2, 4, 8]})
        assert verdict, verdict
        ```
    """
    validate(f, rtol, atol, seed)
    rtol, atol = (None if tolerance is None else float(tolerance) for tolerance in (rtol, atol))
    wanted = AnySize.of(mesh, "check") or wanted_meshes(mesh, "check", args)
    options = in_specs, Static.of(static_argnums, static_argnames)
    with showing_progress(f"checking {name_of(f)}", progress):
        meshes, refused = (
            wanted.small(f, args, options) if isinstance(wanted, AnySize) else (wanted, "")
        )
        try:
            verdict = _checked(
                f, args, meshes, reference, options, rtol, atol, seed, all_meshes, fix
            )
        except ShardingError as error:
            rest = f, args, meshes, reference, options
            verdict = fixed_if_rejected(error, *rest) if fix else None
            if verdict is None:
                raise
        checked = "\n".join(filter(None, [refused, verdict.checked]))
        return dataclasses.replace(verdict, checked=checked)


def _checked(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
    rtol: float | None,
    atol: float | None,
    seed: int,
    all_meshes: bool,
    fix: bool,
) -> Verdict:
    """Return the verdict, and a fix if one was found."""
    first = None
    if reference is None:
        first = Tracing(f, one_device(meshes[0]), *options).specified(args)
        if verdict := verdict_unsharded(first, args, meshes):
            return verdict
    examined = examine(
        f, args, meshes, reference, options, rtol, atol, seed, all_meshes, first=first
    )
    return fixed(examined, f, meshes, reference, options) if fix else examined.verdict

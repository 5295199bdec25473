"""`check`, as it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..._base.calls import DEVICES, public
from ..._base.doing import Telling, telling
from ..._base.errors import name_of
from ..._engine.static import Static
from ..check import Meshes, Verdict, examine, validate, wanted_meshes
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
    progress: Telling = None,
) -> Verdict:
    """Is `f` right on any number of devices, and if not, at which line.

    Reads `f` on every mesh asked for, and runs it, simulated, on the largest and on those on which
    it is not proved right. Compares each result with that of the mesh of ones, or with `reference`.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, it is
            given it; otherwise it runs under it as the ambient mesh.
        *args: Its arguments: pytrees of arrays, Flax NNX objects. They are left as they are. For a
            `jax.ShapeDtypeStruct` among them, or an object made by `nnx.eval_shape`, values are
            drawn.
        mesh: Axis names, each with a size or a list of sizes: `{"data": [1, 2, 4, 8]}`. With
            several axes every combination is tried. A mesh is tried alone, a list of meshes with
            the same axes one after the other. It has to be named.
        reference: What is right: a function of the same arguments, or its result. Left out, the
            result on the mesh of ones.
        rtol: An element may differ by `atol + rtol * |reference|`. Left out, both of them, by a
            millionth of itself (1e-10 of what is declared float64): programs are evaluated in
            float64, whatever dtypes they declare.
        atol: See `rtol`.
        seed: From which values are drawn.
        in_specs: How the arguments lie on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.
        all_meshes: Whether to run on every mesh. Left out, the largest mesh is run first, and where
            it is wrong, smaller ones are confirmed by reading the program; those of a long program
            of which that says nothing stand in `verdict.not_run`.
        fix: Whether to look for an edit of the source that makes a wrong program right. It is tried
            before it is shown, and stands in `finding.fix`.
        progress: What is going on, while it takes long: None is a line on a terminal that goes away
            by itself and nothing elsewhere, True also lines where there is no terminal, False
            nothing. A function is given the words: `progress=print`.

    Returns:
        The verdict: true where the program is right on every mesh.

    Raises:
        ArgumentError: There is no `mesh`.
        ShardingError: The program cannot run on one of the meshes: a size does not divide, say.
        UnsupportedError: The program uses something that cannot be simulated.
        ShardwiseError: An option makes no sense.

    Example:
        ```python
        verdict = sw.check(step, params, batch, mesh={"data": [1, 2, 4, 8]})
        assert verdict, verdict
        ```
    """
    validate(f, rtol, atol, seed)
    rtol, atol = (None if given is None else float(given) for given in (rtol, atol))
    meshes = wanted_meshes(mesh, "check", args)
    options = in_specs, Static.of(static_argnums, static_argnames)
    with telling(f"checking {name_of(f)}", progress):
        given = meshes, reference, options, rtol, atol, seed, all_meshes
        examined = examine(f, args, *given)
        return fixed(examined, f, meshes, reference, options) if fix else examined.verdict

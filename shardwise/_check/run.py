"""Run a program on several meshes and compare: `check`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._errors import DeadlockError
from .._mesh import AbstractMesh, axes_of, resized
from .._program import Collective, walk
from .._simulate import Tracing
from .._static import Static
from .describe import describe
from .draw import run_drawn
from .lint import lint
from .meant import Meant
from .options import Meshes, validate, wanted_meshes, words
from .reference import wanted_of
from .running import Run
from .seen import unseen
from .silence import place_of, split_silenced
from .verdict import NOWHERE, Finding, Verdict
from .wrong import Wrong, wrong_results


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
) -> Verdict:
    """Is `f` right on any number of devices, and if not, at which line.

    Runs `f` simulated on every mesh asked for and compares each result with that of the mesh of
    ones, or with `reference`. Also reads the program for what may go wrong.

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
        rtol: An element may differ by `atol + rtol * |reference|`. Left out, both of them, by as
            much as rounding can make of it, which is measured.
        atol: See `rtol`.
        seed: From which values are drawn.
        in_specs: How the arguments lie on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.

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
    meshes = wanted_meshes(mesh, "check")
    ones = resized(meshes[0], dict.fromkeys(meshes[0].axis_names, 1))
    options = in_specs, Static.of(static_argnums, static_argnames)
    base, given = run_drawn(Tracing(f, ones, *options), args, seed)
    wanted = wanted_of(reference, base, given)
    limits = base.limits(max(math.prod(m.shape.values()) for m in meshes), rtol, atol)
    runs = [base if one == ones else Run(Tracing(f, one, *options), given) for one in meshes]
    meant = Meant(base) if reference is None else None
    findings: list[Finding] = []
    wrong: list[Wrong] = []
    wrong_on: list[str] = []
    proved_on: list[str] = []
    likewise: list[tuple[Run, AbstractMesh]] = []
    several = [run for run in runs if run is not base]

    def compare(run: Run, one: AbstractMesh) -> None:
        follows = meant if meant is not None and base.paths else None
        known = follows.judged(run) if follows else [None] * len(limits)
        factors = follows.factors(run) if follows else [None] * len(limits)
        other = None if len(several) < 2 else several[-1 if run is not several[-1] else 0]
        try:
            here = wrong_results(run, base, wanted, limits, known, factors, other)
        except DeadlockError as error:
            findings.append(_deadlock(error, run, one))
            wrong_on.append(words(one))
        else:
            wrong.extend(here)
            wrong_on.extend([words(one)] * bool(here))

    for run, one in zip(runs, meshes, strict=True):
        findings += lint(run.body, list(axes_of(one).values())) if base.paths else []
        if meant is not None and base.paths and meant.proved(run):
            proved_on.append(words(one))
            if run is not runs[-1] and run is not base:
                continue
        elif meant is not None and run in several[1:-1] and meant.likewise(run, runs[-1]):
            likewise.append((run, one))
            continue
        compare(run, one)
    if likewise and words(meshes[-1]) in wrong_on:
        # A multiple of something that is not zero is wrong, as the largest mesh has shown.
        order = list(map(words, meshes))
        wrong_on = sorted({*wrong_on, *(words(one) for _, one in likewise)}, key=order.index)
    else:
        for run, one in likewise:
            compare(run, one)
    causes, rest = meant.causes(wrong) if meant is not None else ([], wrong)
    findings = causes + describe(rest) + findings
    findings += [_disagree(one) for one in sorted({*wrong_on} & {*proved_on})]
    if not wrong_on:
        findings += unseen(base, runs, meshes, reference is not None)
    kept, silenced = split_silenced(_once(findings, wrong), place_of(f))
    certain = any(finding.certain for finding in kept)
    return Verdict(
        kept,
        tuple(map(words, meshes)),
        len(limits),
        getattr(f, "__name__", type(f).__name__),
        wrong_on=tuple(wrong_on) if certain else (),
        silenced=silenced,
        drawn=given is not args,
        proved_on=tuple(proved_on),
    )


def _disagree(mesh: str) -> Finding:
    return Finding(
        "SW410",
        f"the program is proved on {mesh}, and yet the numbers differ there. One of the two is "
        "wrong, and that is a bug in shardwise: a report with the program would help",
        NOWHERE,
        certain=False,
        mesh=mesh,
    )


def _deadlock(error: DeadlockError, run: Run, mesh: AbstractMesh) -> Finding:
    op = run.program.watch.sites[0]
    waits = next(c for b in op.bodies for c in walk(b.ops) if isinstance(c, Collective))
    head, *rest = str(error).split("\n  Remedy: ")
    return Finding(
        "SW301",
        head,
        waits.where,
        remedy=rest[0] if rest else "",
        mesh=words(mesh),
    )


SAID_BY = {
    "SW201": {"SW401"},
    "SW202": {"SW301"},
    "SW203": {"SW104", "SW105", "SW301", "SW403", "SW406"},
}
"""Suspicions that need no word of their own once running has shown the fact."""


def _once(findings: Sequence[Finding], wrong: Sequence[Wrong]) -> tuple[Finding, ...]:
    """Each finding once; what reading suspected is certain where running shows it."""
    shown = {w.suspect for w in wrong}
    told = {finding.code for finding in findings if finding.certain}
    kept: dict[Any, Finding] = {}
    for finding in findings:
        if told & SAID_BY.get(finding.code, set()):
            continue
        if (finding.code, finding.where) in shown:
            finding = dataclasses.replace(finding, certain=True)
        key = (finding.code, finding.where, finding.leaf)
        if key not in kept or (finding.certain and not kept[key].certain):
            kept[key] = finding
    return tuple(sorted(kept.values(), key=lambda finding: not finding.certain))

"""Combine the report of a trace with what the compiler does with the same program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ..._base.doing import doing
from ..._base.errors import ArgumentError, text_of
from ..._engine.tracing import Traced
from ..._jax.compiling import PLATFORMS, meshes_in
from ..._mesh import Axis
from ..compiler.compile import Input, compiled, inputs_of, uneven
from ..compiler.worker import CompileError
from .compiled import Rows, held_arguments, held_results, memory_of, with_redundant, work_of
from .data import CollectiveUse, MeshAxis, Traffic
from .notes import notes_of
from .report import Report
from .suggest import suggestions

LARGEST = 2048
"""The largest number of devices that a program is compiled for by default."""

CPU = (
    "the compiler's collectives are those of a compile for CPU devices. A TPU or GPU may combine "
    "messages, hide them behind compute, and reduce-scatter where a CPU reduces and slices."
)

GPU = (
    "the compiler's collectives and the memory are those of a compile for {} on hosts of 8, "
    "without autotuning."
)

WHOLE = (
    "there is no shard_map in the program and nothing in it is sharded, so every device computes "
    "all of it: give the arguments a sharding, or in_specs=."
)

ONE = "the mesh has one device, which sends nothing; the program was not compiled."


@dataclasses.dataclass(frozen=True)
class CompilePlan:
    """Whether a program is compiled, and what is known before it is."""

    compile: bool | Literal["auto"]
    mesh: Mesh | AbstractMesh | None
    sharded: bool
    """Whether it contains a `shard_map`."""
    left: tuple[str, ...]
    """What is left to the compiler, in sentences."""
    unread: str
    """Why the symbolic analysis failed, or empty."""
    products: float
    """FLOPs of the matrix products of the whole program, without repetitions."""
    suggest: bool = False
    """Whether to look for constraints that send less."""
    platform: str = "cpu"
    """A name of `PLATFORMS`."""


def compile_mode(compile: Any, platform: Any) -> bool | Literal["auto"]:
    """Return whether to compile; raise unless both arguments have allowed values."""
    if platform not in PLATFORMS:
        raise ArgumentError(
            f"platform is {platform!r}",
            where="sw.explain",
            rule=f"A program is compiled for {', '.join(PLATFORMS)}.",
            remedy='platform="cuda" compiles for the GPU of this machine.',
        )
    if compile != "auto" and not isinstance(compile, bool):
        raise ArgumentError(
            f"compile is {compile!r}",
            where="sw.explain",
            rule='compile is "auto", True or False.',
            remedy='compile="auto" compiles what the compiler partitions.',
        )
    if platform == "cpu":
        return compile
    if compile is False:
        raise ArgumentError(
            f"platform is {platform!r}, and compile is False",
            where="sw.explain",
            rule="A platform is what the program is compiled for.",
            remedy="leave out compile=False.",
        )
    return True


def with_compiled(report: Report, traced: Traced, plan: CompilePlan) -> Report:
    """Return the report with what the compiler sends, if the program is compiled."""
    mesh = plan.mesh
    if mesh is None or not plan.compile or (plan.compile == "auto" and not plan.left):
        return _with_notes(report, plan.left)
    if not traced.program.body.outs:
        return _with_notes(report, plan.left)
    if mesh.size == 1 and plan.compile == "auto":
        return _with_notes(report, [ONE])
    if mesh.size > 1 and not plan.sharded and not _is_split(traced, mesh):
        return _with_notes(report, [WHOLE])
    if plan.compile == "auto" and mesh.size > LARGEST:
        more = f"for {mesh.size:,} devices it is compiled with compile=True alone."
        return _with_notes(report, (*plan.left, more))
    try:
        doing(f"compiling for {mesh.size:,} devices")
        return _combined(report, traced, plan, mesh)
    except CompileError as error:
        if plan.compile is True or not plan.sharded:
            raise
        return _with_notes(report, (*plan.left, f"it was not compiled: {text_of(error)}"))


def _with_notes(report: Report, notes: Sequence[str]) -> Report:
    return dataclasses.replace(report, notes=(*notes, *report.notes))


def _is_split(traced: Traced, mesh: Mesh | AbstractMesh) -> bool:
    """Return whether anything in a program is sharded."""
    split = any(axis for item in inputs_of(traced) for axis in item.spec.partitions)
    return split or bool(meshes_in(traced.program.jaxpr))


def _combined(
    report: Report, traced: Traced, plan: CompilePlan, mesh: Mesh | AbstractMesh
) -> Report:
    inferred = [PartitionSpec(*(row or None for row in array.spec)) for array in report.arguments]
    inputs, unplaced = _even(inputs_of(traced, inferred), report, mesh)
    result = compiled(traced, inputs, mesh, plan.platform)
    doing("reading the compiled program")
    rows = Rows(result, report.collectives)
    steps = rows.steps()
    uses = with_redundant(rows.collectives, report.collectives)
    axes = tuple(MeshAxis(name, size) for name, size in mesh.shape.items())
    arguments = held_arguments(result, report.arguments, axes)
    results = held_results(result, report.results, axes)
    used_bytes = sum(array.bytes for array in arguments if array.used)
    unused_bytes = sum(array.bytes for array in arguments if not array.used)
    kind = result.files.kind
    limits = CPU if plan.platform == "cpu" else GPU.format(f"{mesh.size:,} virtual {kind}")
    memory = memory_of(result, used_bytes, unused_bytes, sum(array.bytes for array in results))
    return dataclasses.replace(
        report,
        mesh=axes,
        arguments=tuple(arguments),
        results=tuple(results),
        collectives=tuple(uses),
        steps=steps,
        traffic=traffic_of(uses, axes),
        memory=memory or report.memory,
        work=work_of(result, plan.products),
        notes=(
            *unplaced,
            *dict.fromkeys(rows.reasons.replicated()),
            *notes_of(uses, plan.unread),
            limits,
        ),
        compiled=True,
        shardings=tuple(rows.reasons.shardings()),
        suggestions=suggestions(traced, mesh, result, uses, plan.platform) if plan.suggest else (),
    )


def _even(
    inputs: Sequence[Input], report: Report, mesh: Mesh | AbstractMesh
) -> tuple[list[Input], list[str]]:
    """Return the inputs, those replicated that no spec divides and no line uses; notes on these."""
    even, notes = list(inputs), []
    first = len(inputs) - len(report.arguments)
    for place, array in enumerate(report.arguments, first):
        what = "" if array.used else uneven(inputs[place], array.shape, mesh)
        if what:
            even[place] = dataclasses.replace(inputs[place], spec=PartitionSpec())
            notes.append(
                f"{array.path}: {what}, which jit refuses. The program does not use it, and it is "
                "compiled as if every device held all of it: leave it out, or pad it."
            )
    return even, notes


def traffic_of(
    uses: Sequence[CollectiveUse], axes: Sequence[MeshAxis | Axis]
) -> tuple[Traffic, ...]:
    """Return what is sent along each axis, and each group of axes that a collective uses."""
    counted = [use for use in uses if use.counted]
    rows = dict.fromkeys([*((axis.name,) for axis in axes), *(use.axes for use in counted)])
    total = sum(use.total_bytes for use in counted)
    traffic = []
    for names in rows:
        group = [use for use in counted if use.axes == names]
        size = sum(use.total_bytes for use in group)
        times = sum(use.least for use in group)
        traffic.append(Traffic(names, len(group), times, size, size / total if total else 0.0))
    return tuple(traffic)

"""`explain`: trace a sharded program and report what it sends, stores and costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

from ..._base.calls import DEVICES, public
from ..._base.doing import Progress, doing, showing_progress
from ..._base.errors import ArgumentError, a_type, name_of
from ..._engine.call import simulate_p
from ..._engine.static import Static
from ..._engine.tracing import Traced, Tracing
from ..._mesh import AbstractMesh, Axis, Mesh, MeshLike, Placement, axes_of, placement
from ..._program import Body, Passes, Var, annotate, build, is_sharded, walk
from ..._program.where import place_of
from ..compiler.compile import declared_specs, mesh_of
from .combine import CompilePlan, compile_mode, traffic_of, with_compiled
from .data import ArrayLayout, MeshAxis, Work
from .hardware import Hardware, find
from .meant import SymbolicValues
from .memory import memory_of
from .merge import merged
from .notes import left_to_compiler, notes_of
from .placing import Layouts
from .prune import pruned
from .record import CollectiveRecorder, LoopContext, ProgramTally
from .report import Report


@public("sw.explain", devices=DEVICES, machine="hardware= names the machine.")
def explain(
    f: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    hardware: str | Hardware | None = None,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    compile: bool | Literal["auto"] = "auto",
    platform: Literal["cpu", "cuda", "h100"] = "cpu",
    suggest: bool = False,
    progress: Progress = None,
) -> Report:
    """Report what a sharded program sends, from which line, what it stores and what it costs.

    `f` is traced, not run: arguments may be `jax.ShapeDtypeStruct`s, and the mesh may have any
    size. Programs that the compiler partitions (`jit` with shardings, `with_sharding_constraint`,
    Explicit axes) are compiled in another process, for as many virtual devices as the mesh has.

    Args:
        f: The function: with `jax.shard_map` inside, partitioned by the compiler, or both.
        *args: Its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s, Flax NNX objects.
        mesh: The mesh: `sw.mesh(data=8)`, a real one, or `{"data": 8}`. If `f` takes a keyword
            `mesh`, the mesh is passed to it; otherwise it is the ambient mesh. Left out, `f` has
            its own mesh.
        hardware: To estimate seconds: the name of a profile (`h100-node`, `h200-node`,
            `h200-network`, `tpu-v5e`, `tpu-v5p`) or a `sw.Hardware` of your own.
        in_specs: How the arguments are sharded, as in `sw.simulate`; an array that has a sharding
            keeps it. Other shardings are inferred from the program.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.
        compile: Whether to compile the program and read the collectives off the optimised HLO.
            `"auto"` compiles if the compiler decides what is sent, up to 2,048 devices; `True`
            always, `False` never: then only collectives that the program calls are known.
        platform: What to compile for. `"cpu"` works everywhere; `"cuda"` compiles for the GPU of
            this machine, as often as the mesh has devices; `"h100"` for H100s, which need not
            exist. Both need JAX's CUDA plugin, and always compile.
        suggest: Whether to look for a `with_sharding_constraint` on an argument that sends less.
            Each is compiled, and those that send less are in `report.suggestions`.
        progress: Where to show progress: None for a temporary line on a terminal, True for lines
            in other outputs too, False for nothing, or a function that is called with each
            message: `progress=print`.

    Returns:
        The report: `print(report)` to read it, `report.to_dict()` for programs,
        `report.save("step.html")` for a design review.

    Raises:
        ShardingError: Mesh, specs and arrays do not match.
        UnsupportedError: The program uses an unknown collective.
        ShardwiseError: There is no hardware of that name, or the program does not compile.

    Example:
        ```python
        report = sw.explain(step, params, batch, mesh=sw.mesh(data=1024, model=64))
        print(report)
        ```
    """
    if not callable(f):
        raise ArgumentError(
            f"f is {a_type(f)}",
            where="sw.explain",
            rule="explain takes a function and its arguments.",
            remedy="sw.explain(f, *args, mesh=mesh)",
        )
    compile = compile_mode(compile, platform)
    machine = None if hardware is None else find(hardware)
    static = Static.of(static_argnums, static_argnames)
    tracing = Tracing(f, mesh, in_specs, static)
    with showing_progress(f"explaining {name_of(f)}", progress):
        doing("tracing")
        traced = tracing(args, {})
        doing("adding up what is sent, held and computed")
        report = _report(f, traced, tracing.mesh, compile, platform, suggest)
    return report if machine is None else report.on(machine)


def _report(
    f: Callable[..., Any],
    traced: Traced,
    mesh: Mesh | AbstractMesh | None,
    compile: bool | Literal["auto"],
    platform: str,
    suggest: bool,
) -> Report:
    body = _operations(traced)
    full_mesh = mesh_of(traced, mesh)
    axes = _axes(body, mesh if full_mesh is None or is_sharded(body) else full_mesh)
    paths = traced.argument_paths
    inputs = body.ins[len(body.ins) - len(paths) :]
    layouts = Layouts(body, _shardings(traced, inputs, axes))
    meaning = (
        SymbolicValues.of(body, traced.constants, paths) if is_sharded(body) else SymbolicValues()
    )
    recorder = CollectiveRecorder(layouts, Passes(body), meaning)
    steps, tally = recorder.steps(body, LoopContext())
    read = {atom for op in body.ops for atom in op.ins} | set(body.outs)
    arguments = tuple(
        _layout(path, var, layouts, axes, var in read)
        for path, var in zip(paths, inputs, strict=True)
    )
    results = tuple(
        _layout(path, _as_var(atom, aval), layouts, axes)
        for path, atom, aval in zip(
            traced.result_paths, body.outs, traced.program.avals, strict=True
        )
    )
    names = dict.fromkeys((var for var in body.ins if var in read), "constant")
    names |= {var: path for path, var in zip(paths, inputs, strict=True) if var in read}
    memory = memory_of(
        body,
        layouts,
        names,
        sum(array.bytes for array in arguments if array.used),
        sum(array.bytes for array in results),
    )
    devices = math.prod(axis.size for axis in axes)
    report = Report(
        name=name_of(f),
        mesh=tuple(MeshAxis(axis.name, axis.size) for axis in axes),
        arguments=arguments,
        results=results,
        collectives=tuple(recorder.collectives),
        steps=steps,
        traffic=traffic_of(recorder.collectives, axes),
        memory=memory,
        work=_work(tally, devices),
        notes=notes_of(recorder.collectives, meaning.failed),
        source=place_of(f),
    )
    unread = left_to_compiler(body, layouts, axes)
    plan = CompilePlan(
        compile,
        full_mesh,
        is_sharded(body),
        unread,
        meaning.failed,
        tally.products,
        suggest,
        platform,
    )
    return with_compiled(report, traced, plan)


def _operations(traced: Traced) -> Body:
    """Return the operations of a program, including those of simulated programs inside it."""
    body = build(traced.program.jaxpr, through=simulate_p.name)
    annotate(body)
    return merged(pruned(body))


def _axes(body: Body, mesh: Mesh | AbstractMesh | None) -> tuple[Axis, ...]:
    """Return the axes of the mesh, and those of meshes that the program has itself."""
    axes = dict.fromkeys(axes_of(mesh).values() if mesh is not None else ())
    for op in walk(body.ops):
        axes |= dict.fromkeys(op.scope)
    return tuple(axes)


def _shardings(traced: Traced, inputs: list[Var], axes: tuple[Axis, ...]) -> dict[Var, Placement]:
    """Return the layout of arguments that have a sharding or a spec."""
    by_name = {axis.name: axis for axis in axes}
    specs = declared_specs(traced)[len(traced.values) - len(inputs) :]
    return {
        var: placement(spec, len(var.shape), by_name)
        for var, spec in zip(inputs, specs, strict=True)
        if spec is not None
    }


def _as_var(atom: Any, aval: Any) -> Var:
    return atom if isinstance(atom, Var) else Var(tuple(aval.shape), aval.dtype)


def _layout(
    path: str, var: Var, layouts: Layouts, axes: tuple[Axis, ...], used: bool = True
) -> ArrayLayout:
    split = set(layouts.axes(var))
    return ArrayLayout(
        path=path,
        shape=var.shape,
        dtype=var.kind,
        spec=tuple(tuple(axis.name for axis in row) for row in layouts.of(var)),
        local_shape=layouts.local_shape(var),
        bytes=layouts.bytes(var),
        replicated=tuple(axis.name for axis in axes if axis not in split),
        used=used,
    )


def _work(tally: ProgramTally, devices: int) -> Work:
    total = tally.flops * devices
    return Work(
        flops=tally.flops,
        total=total,
        redundant=max(0.0, total - tally.distinct),
        by_kind=dict(tally.kinds),
        moved=tally.moved,
        uncounted=tuple(sorted(tally.uncounted)),
    )

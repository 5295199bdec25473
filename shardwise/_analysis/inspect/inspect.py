"""`inspect`: run a program on all devices of a mesh and keep every value on each device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from ..._base.calls import DEVICES, public
from ..._base.doing import Progress, doing, showing_progress
from ..._base.errors import ArgumentError, ShardwiseError, a_type, name_of
from ..._engine.call import SimulatedProgram, simulate_p
from ..._engine.static import Static
from ..._engine.tracing import Traced, Tracing
from ..._jax.virtual import under
from ..._meaning import Kept, keep
from ..._mesh import AbstractMesh, Mesh, MeshLike, one_mesh
from ..._program import is_sharded, walk
from .inspection import Inspection
from .record import StepRecorder


@public("sw.inspect", devices=DEVICES)
def inspect(
    f: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    line: int | str | None = None,
    where: str | None = None,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    progress: Progress = None,
) -> Inspection:
    """Return every value of a sharded program in program order, with its part on each device.

    The program is run once, simulated on all devices of the mesh. Small arrays are kept whole,
    large ones as their range and first elements. A program that would deadlock is shown up to the
    deadlock.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, it is
            called with it; otherwise it runs under it as the ambient mesh.
        *args: Its arguments: pytrees of arrays, Flax NNX objects. They are not changed.
        mesh: The mesh: `sw.mesh(data=4)`, or `{"data": 4}`. By default, `f` has its own mesh.
        line: Only this line: `12`, or `"train.py:12"`.
        where: Only values with this name, operation or function; if there are none, those whose
            line contains this text.
        in_specs: The sharding of the arguments on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.
        progress: None shows a status line on a terminal only, True also prints lines where there is
            no terminal, False shows nothing. A function is called with each report:
            `progress=print`.

    Returns:
        The inspection: `print` it, show it in a notebook, `save("page.html")` it to step through.

    Raises:
        ShardingError: The program cannot run on the mesh.
        ShardwiseError: No value is computed at `line` or `where`.
        UnsupportedError: The program uses something that cannot be simulated.

    Example:
        ```python
        print(sw.inspect(step, params, batch, mesh=sw.mesh(data=4), where="grads"))
        ```
    """
    if not callable(f):
        raise ShardwiseError(
            f"f is {a_type(f)}",
            where="sw.inspect",
            rule="inspect takes a function and its arguments.",
            remedy="sw.inspect(f, *args, mesh=sw.mesh(data=4))",
        )
    resolved = None if mesh is None else one_mesh(mesh)
    static = Static.of(static_argnums, static_argnames)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args)):
        raise ArgumentError(
            "an argument is a jax.ShapeDtypeStruct, which has no values",
            where="sw.inspect",
            rule="inspect runs the program, so it needs values.",
            remedy="pass an array: jnp.ones(x.shape, x.dtype). sw.check draws values for shapes; "
            "sw.prove and sw.explain need none.",
        )
    with showing_progress(f"inspecting {name_of(f)}", progress):
        doing("tracing")
        traced = Tracing(f, resolved, in_specs, static)(args, {})
        doing("following each value")
        program = SimulatedProgram(traced.program.jaxpr, split_replicated=True)
        program.inline(simulate_p.name)
        meanings, unread = _followed(traced, program)
        doing("running on all devices")
        recorder = StepRecorder(program, meanings, traced.result_paths)
        with under(None):  # a simulated program runs on no mesh
            steps = recorder.record(traced.plain)
    inspection = Inspection(
        name=name_of(f),
        mesh=_sizes(resolved, program.body.ops),
        steps=tuple(steps),
        notes=(*recorder.notes, *unread, *_not_sharded(resolved, traced)),
        deadlock=recorder.deadlock,
    )
    return inspection if line is None and where is None else inspection.at(line, where)


def _followed(traced: Traced, program: SimulatedProgram) -> tuple[Kept | None, list[str]]:
    """Return the meanings of the values, and a note if the analysis failed."""
    try:
        return keep(program.body, traced.constants, traced.argument_paths), []
    except Exception as error:  # what a value means must not cost the user its numbers
        return None, [f"what the values mean is not known ({type(error).__name__}: {error})."]


def _not_sharded(mesh: Mesh | AbstractMesh | None, traced: Traced) -> list[str]:
    """Return a note if the program does not use the mesh."""
    if mesh is None or mesh.size == 1 or is_sharded(traced.program.body):
        return []
    if not traced.program.body.outs:
        return ["the function returns no arrays, so what it computes is left out."]
    return [
        "there is no shard_map in the program, so every value is whole: what each device holds of "
        "it is left to the compiler."
    ]


def _sizes(mesh: Mesh | AbstractMesh | None, ops: Any) -> dict[str, int]:
    """Return the axes of the mesh: the one given, or those that the program's own meshes have."""
    program_axes = {axis.name: axis.size for op in walk(ops) for axis in op.scope}
    mesh_axes = {} if mesh is None else {str(name): size for name, size in mesh.shape.items()}
    return {**mesh_axes, **program_axes}

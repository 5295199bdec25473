"""Compile a traced program for its mesh, and read the compiler's output."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ..._base.errors import ShardingError, text_of
from ..._engine.tracing import Traced
from ..._jax.compiling import lower, meshes_in, named_sharding, placed_inputs
from ..._mesh import split_over
from . import worker
from .hlo import Module, parse
from .origin import Origins
from .sent import Node, Reader, Sent, sent_in


@dataclasses.dataclass(frozen=True)
class Input:
    """An input of a program, as it is compiled."""

    path: str
    """`params['w1']`; empty for a constant that the program closes over."""
    spec: PartitionSpec
    donated: bool


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program."""

    mesh: Mapping[str, int]
    devices: int
    inputs: tuple[Input, ...]
    files: worker.Files

    @functools.cached_property
    def module(self) -> Module:
        """The HLO that one device runs."""
        return parse(self.files.optimized)

    @functools.cached_property
    def whole(self) -> Module:
        """The HLO of the whole program before partitioning, with the sharding of each result."""
        return parse(self.files.propagated)

    @functools.cached_property
    def schedule(self) -> list[Node]:
        """What one device runs, in order."""
        return Reader(self.module, self.mesh, self.devices).schedule()

    @functools.cached_property
    def sent(self) -> list[Sent]:
        """Everything that devices send each other."""
        return list(sent_in(self.schedule))

    @functools.cached_property
    def origins(self) -> Origins:
        """The inputs behind the arrays of the HLO that one device runs."""
        return Origins(self.module)

    def argument(self, sent: Sent) -> str:
        """Return the path of the argument that is sent, or empty if it is a computed value."""
        computation = self.module.computations[sent.computation]
        source = computation.get(sent.operand)
        number = None if source is None else self.origins.of(source, sent.computation)
        return "" if number is None else self.inputs[number].path

    @property
    def peak(self) -> int | None:
        """Bytes of the buffer assignment: arguments, results and temporary values."""
        match = re.search(r"Total bytes: (\d+)", self.files.memory)
        return int(match[1]) if match else None


def mesh_of(traced: Traced, mesh: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh | None:
    """Return the mesh to compile for; if the program itself names one with devices, that one.

    Without `mesh`, it is the mesh of the program's own shardings, or of its arguments.
    """
    meshes = meshes_in(traced.program.jaxpr)
    meshes += [s.mesh for value in traced.values if (s := named_sharding(value))]
    if mesh is None:
        return meshes[0] if meshes else None
    matches = (m for m in meshes if isinstance(m, Mesh) and m.shape == mesh.shape)
    return next(matches, mesh)


def declared_specs(traced: Traced) -> list[PartitionSpec | None]:
    """Return for each input the spec that `in_specs=` or its own sharding gives it, constants
    first."""
    constants = len(traced.values) - len(traced.specs)
    shardings = map(named_sharding, traced.values)
    return [
        sharding.spec if spec is None and sharding else spec
        for spec, sharding in zip([*[None] * constants, *traced.specs], shardings, strict=True)
    ]


def inputs_of(traced: Traced, otherwise: Sequence[PartitionSpec] = ()) -> list[Input]:
    """Return how each input is sharded: by itself, by `in_specs=`, or by its use in the program.

    Args:
        traced: The program.
        otherwise: For each argument, its sharding if nothing else determines it.
    """
    constants = len(traced.values) - len(traced.argument_paths)
    paths = [*[""] * constants, *traced.argument_paths]
    placed = placed_inputs(traced.program.jaxpr)
    fallbacks = otherwise or [PartitionSpec()] * len(traced.argument_paths)
    fallbacks = [*[PartitionSpec()] * constants, *fallbacks]
    inputs = []
    rows = zip(paths, declared_specs(traced), placed, fallbacks, strict=True)
    for path, declared, program, fallback in rows:
        specs = (spec for spec in (declared, program.spec, fallback) if spec is not None)
        inputs.append(Input(path, next(specs), program.donated))
    return inputs


def compiled(
    traced: Traced,
    inputs: Sequence[Input],
    mesh: Mesh | AbstractMesh,
    platform: str = "cpu",
    constrained: Mapping[int, PartitionSpec] | None = None,
) -> Compiled:
    """Compile a program for the mesh; raise `CompileError` if that fails.

    With `constrained`, some inputs are first constrained to another sharding.
    """
    worker.start()
    types = traced.program.arguments
    for item, aval in zip(inputs, types, strict=True):
        _refuse_uneven(item, aval.shape, mesh)
    shaped = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=NamedSharding(mesh, item.spec))
        for item, aval in zip(inputs, types, strict=True)
    ]
    donated = [place for place, item in enumerate(inputs) if item.donated]
    try:
        lowered = lower(traced.program.jaxpr, shaped, mesh, donated, constrained, platform)
    except NotImplementedError as error:  # a primitive that this platform does not have
        raise worker.failed(text_of(error), platform) from error
    files = worker.compiled(lowered)
    return Compiled(dict(mesh.shape), lowered.devices, tuple(inputs), files)


def uneven(item: Input, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> str:
    """Return which dimension of an input its spec does not divide, or empty."""
    for size, names in zip(shape, split_over(item.spec), strict=False):
        parts = math.prod(mesh.shape[name] for name in names)
        if size % parts:
            return f"a dimension of size {size} is split over {', '.join(names)}, {parts} devices"
    return ""


def _refuse_uneven(item: Input, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> None:
    """Raise unless the dimensions of an argument are divisible as its spec requires."""
    if what := uneven(item, shape, mesh):
        raise ShardingError(
            what,
            where=item.path or "a constant of the program",
            rule="An argument of jit divides evenly over the devices of its spec.",
            remedy="pad it, or name a mesh or a spec that divides it.",
        )

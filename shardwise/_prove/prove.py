"""Read a program on a mesh and on one device, and hold the meanings against each other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._check import (
    Finding,
    Meshes,
    cause,
    grouped,
    place_of,
    split_silenced,
    wanted_meshes,
    words,
)
from .._errors import ArgumentError, ShardingError, a_type, explain_error
from .._meaning import (
    Gap,
    Reading,
    equal,
    equal_in_blocks,
    equal_in_pieces,
    read_apart,
    speaks_of,
)
from .._mesh import AbstractMesh, Axis, axes_of, resized
from .._program import Body, collectives_in, walk
from .._simulate import Traced, Tracing
from .._static import Static
from .numbers import Numbers, try_numbers
from .proof import PROVED, REFUTED, UNKNOWN, Proof, Result

FEW = 16
"""Up to so many devices along an axis are kept apart."""

SAME = (equal, equal_in_pieces, equal_in_blocks)
"""The ways in which two results are seen to be the same, the quickest first."""


def prove(
    f: Callable[..., Any],
    *args: Any,
    mesh: Meshes | None = None,
    reference: Callable[..., Any] | None = None,
    run: bool = True,
    in_specs: Any = None,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Proof:
    """Prove that `f` gives on a mesh what it gives on one device, for all inputs.

    Nothing is run for a proof: `f` is traced on the mesh and on one device, and every value is
    followed as an expression over the whole arguments. So shapes are enough as arguments, and the
    mesh may be larger than any machine. A proof is in real arithmetic: rounding, and the order in
    which sums are added, are left aside, and casts between floating-point types count as exact.

    Args:
        f: The function, with `jax.shard_map` somewhere inside. If it takes a keyword `mesh`, it is
            given it; otherwise it runs under it as the ambient mesh.
        *args: Its arguments, or their shapes: pytrees of arrays or `jax.ShapeDtypeStruct`s, Flax
            NNX objects.
        mesh: The mesh, or axis names each with a size or a list of sizes:
            `{"data": [1, 2, 4, 8]}` tries all. A list of meshes tries each. It has to be named.
        reference: A function of the same arguments for one device. Left out, `f` on the mesh of
            ones.
        run: Whether to run the program on small numbers where it is not proved: to confirm that it
            is wrong, or to see what they say where it is unknown.
        in_specs: How the arguments lie on a mesh with Explicit axes, as in `sw.simulate`.
        static_argnums: Positional arguments that are not arrays, by number, as in `jax.jit`.
        static_argnames: Arguments that are not arrays, by name, as in `jax.jit`.

    Returns:
        The proof: `"proved"`, `"refuted"` with the cause at its line, or `"unknown"` with the line
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
            explain_error(
                f"f is {a_type(f)}",
                where="sw.prove",
                rule="prove takes a function and its arguments.",
                remedy="sw.prove(f, *args, mesh=mesh)",
            )
        )
    if reference is not None and not callable(reference):
        raise ArgumentError(
            explain_error(
                f"reference is {a_type(reference)}",
                where="sw.prove",
                rule="A proof is for all inputs: the reference is a function of the same "
                "arguments.",
                remedy="sw.check(f, *args, mesh=mesh, reference=value) compares with one value.",
            )
        )
    meshes = wanted_meshes(mesh, "prove")
    ones = resized(meshes[0], dict.fromkeys(meshes[0].axis_names, 1))
    options = in_specs, Static.of(static_argnums, static_argnames)
    own, bare = (f, ones) if reference is None else (reference, None)
    plain = _Reading.of(Tracing(own, bare, *options), ones, args)
    readings = [_Reading.of(Tracing(f, one, *options), one, args, plain) for one in meshes]
    found = [row for reading in readings for row in reading.compared(plain)]
    numbers = Numbers()
    if run is not False and any(row.gaps for row in found):
        decided = all(_decided(row) for row in found)
        extra = {
            "in_specs": in_specs,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
        }
        # On a mesh where all is proved, numbers would say nothing of those where it is not.
        parted = [row.mesh for row in found if row.gaps]
        numbers = try_numbers(f, args, parted, reference, decided, extra)
    return _proof(f, found, meshes, readings, numbers, reference)


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    """One result on one mesh, and where it parts from the reference."""

    path: str
    mesh: AbstractMesh
    gaps: list[Gap]
    waits: bool
    passed_on: frozenset[Axis]
    """The axes along which parts are passed on from device to device."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Reading:
    """A function on one mesh, read."""

    traced: Traced
    mesh: AbstractMesh
    reading: Reading

    @classmethod
    def of(
        cls,
        tracing: Tracing,
        mesh: AbstractMesh,
        args: tuple[Any, ...],
        beside: _Reading | None = None,
    ) -> _Reading:
        traced = tracing(args, {})
        constants = traced.values[: len(traced.values) - traced.given.num_leaves]
        known = beside.reading if beside is not None else None
        return cls(traced, mesh, Reading(traced.program.body, constants, known))

    @property
    def body(self) -> Body:
        """The operations."""
        return self.traced.program.body

    @property
    def constants(self) -> list[Any]:
        """What the function closes over."""
        return [*self.reading.constants]

    @property
    def operations(self) -> int:
        """How many operations the program has."""
        return sum(1 for _ in walk(self.body.ops))

    def compared(self, plain: _Reading) -> list[_Row]:
        """Every result beside that of the reference."""
        if self.traced.tree != plain.traced.tree:
            raise ShardingError(
                explain_error(
                    f"on {words(self.mesh)} the results are {self.traced.tree}, and the reference "
                    f"gives {plain.traced.tree}",
                    where="sw.prove",
                    rule="Both return the same structure.",
                    remedy="return the same pytree from both.",
                )
            )
        found = self.reading.gaps()
        if any(found):
            found = self.apart(plain, found)
        waits = bool(self.traced.program.watch.sites)
        paths = self.traced.result_paths
        passed_on = frozenset(
            axis
            for op in collectives_in(self.body.ops)
            if op.name == "ppermute"
            for axis in op.axes
        )
        return [
            _Row(path, self.mesh, own, waits, passed_on)
            for path, own in zip(paths, found, strict=True)
        ]

    def apart(self, plain: _Reading, found: list[list[Gap]]) -> list[list[Gap]]:
        """The same with the devices along one axis kept apart, for what is not proved so far."""
        alone = math.prod(self.mesh.shape.values()) == 1
        for axis in [None] if alone else speaks_of(self.body):
            if (axis is not None and axis.size > FEW) or not any(found):
                continue
            base = read_apart(plain.body, plain.constants, None)
            own = base and read_apart(self.body, self.constants, axis, base)
            if base and own:
                rows = zip(found, base.results, own.results, strict=True)
                found = [
                    [] if any(same(want, got) for same in SAME) else old for old, want, got in rows
                ]
        return found


def _status(row: _Row, numbers: Numbers) -> str:
    if not row.gaps:
        return UNKNOWN if row.waits else PROVED
    if numbers.run:
        return REFUTED if row.path in numbers.wrong else UNKNOWN
    return REFUTED if _decided(row) else UNKNOWN


def _decided(row: _Row) -> bool:
    """Whether its meaning alone proves or refutes a result."""
    return all((gap.kind == "times" and gap.sure) or _lacks(gap, row.passed_on) for gap in row.gaps)


def _lacks(gap: Gap, passed_on: frozenset[Axis]) -> bool:
    """Whether a share is returned that cannot be the whole: no device has seen another's part."""
    mistake = gap.mistake
    return mistake is not None and mistake.returned and not passed_on & {*mistake.axes}


def _proof(
    f: Callable[..., Any],
    rows: Sequence[_Row],
    meshes: Sequence[AbstractMesh],
    readings: Sequence[_Reading],
    numbers: Numbers,
    reference: Any,
) -> Proof:
    results, findings = [], []
    for row in rows:
        status = _status(row, numbers)
        causes = [
            cause(gap, row.path, tuple(axes_of(row.mesh).values()), words(row.mesh))
            for gap in row.gaps
        ]
        results.append(Result(row.path, words(row.mesh), status, _reason(row, causes)))
        findings += [
            dataclasses.replace(found, certain=status == REFUTED and found.code != "SW409")
            for found in causes
        ]
    if any(row.waits for row in rows):
        findings += [_waits(reading) for reading in readings if reading.traced.program.watch.sites]
    statuses = {one.status for one in results}
    status = next((kind for kind in (REFUTED, UNKNOWN) if kind in statuses), PROVED)
    told = sorted(grouped(findings), key=lambda finding: not finding.certain)
    kept, silenced = split_silenced(told, place_of(f))
    return Proof(
        status,
        tuple(results),
        kept,
        tuple(map(words, meshes)),
        sum(reading.operations for reading in readings),
        numbers.words,
        "itself on one device"
        if reference is None
        else getattr(reference, "__name__", "reference"),
        getattr(f, "__name__", type(f).__name__),
        silenced,
    )


def _reason(row: _Row, causes: Sequence[Finding]) -> str:
    if causes:
        return causes[0].message.removeprefix(f"{row.path} ")
    return "it may wait forever" if row.waits else ""


def _waits(reading: _Reading) -> Finding:
    site = reading.traced.program.watch.sites[0]
    return Finding(
        "SW408",
        "a collective is under a decision that may differ between devices; where it does, some "
        "wait forever",
        site.where,
        remedy="compute the collective on every device and select with jnp.where, or take the "
        "decision from a reduced value.",
        certain=False,
        mesh=words(reading.mesh),
    )

"""Rules that read a program without running it.

Their findings may be false alarms, and none fails a verdict by itself. Running decides: a finding
that explains a wrong result becomes certain.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..._engine.lower import DivergenceWatch
from ..._mesh import Axis
from ..._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Join,
    Leaf,
    Op,
    Split,
    Var,
    Where,
    annotate,
    collectives_in,
    differing,
    is_sharded,
    walk,
    within,
)
from ..._program.liveness import dependents
from ..._program.primitives import of
from ..faults import Finding, GatheredToReduce, MayDiffer, MayDiverge, ReducedAgain, UnusedAxis
from .diagnose import gradient_before
from .two_ways import two_ways

LARGE = 1 << 20
"""Gathers of fewer bytes than this are not reported."""


def lint(body: Body, axes: list[Axis], right: bool) -> list[Finding]:
    """Return the findings of all rules, rule by rule.

    `axes` are those of the mesh; `right`: every result is.
    """
    return [
        *_reduced_again(body, right),
        *_may_part(body),
        *_differs(body),
        *_unused(body, axes),
        *_gathered_to_reduce(body),
    ]


def _reduced_again(body: Body, right: bool) -> Iterator[Finding]:
    data = dependents(body.ops, body.ins)
    for op in collectives_in(body.ops):
        repeated = [axis for axis in op.axes if axis.size > 1 and axis not in op.ins[0].axes]
        # A constant count may well be summed.
        if op.name == "psum" and repeated and not op.backward and op.ins[0] in data:
            axis_name = repr(repeated[0].name)
            gradient = gradient_before(body, op.ins[0])
            remedy = two_ways(gradient, axis_name) if gradient is not None else ""
            averages = within(op.source, "pmean")
            yield ReducedAgain.from_operations(op, axis_name, averages, remedy, harmless=right)


def _may_part(body: Body) -> Iterator[Finding]:
    for op in DivergenceWatch(body.ops).sites:
        collective = next(c for branch in op.bodies for c in collectives_in(branch.ops))
        yield MayDiverge.from_operations(op, collective)


def parted(body: Body) -> Iterator[tuple[Join, Axis]]:
    """Yield the joins that declare values to be the same along an axis along which they differ."""
    joins = [op for op in walk(body.ops) if isinstance(op, Join)]
    varying = {op: {*op.replicated} & op.ins[0].axes for op in joins}
    if any(varying.values()):
        # A loop keeps all its results per device, even those that are the same on all of them.
        differing(body)
        varying = {op: {*op.replicated} & op.ins[0].axes for op in joins}
        annotate(body)
    for op, axes in varying.items():
        yield from [(op, axis) for axis in sorted(axes) if axis.size > 1][:1]


def _differs(body: Body) -> Iterator[Finding]:
    for op, axis in parted(body):
        yield MayDiffer.from_operations(axis, place_of_values(body, op))


def place_of_values(body: Body, join: Join) -> Where:
    """Return the line that computes the values which are declared to be the same."""
    return (maker_of(body, join.ins[0]) or join).where


def axes_used(body: Body) -> set[Axis]:
    """Return the axes that a spec or a collective of the program names."""
    named: set[Axis] = set()
    for op in walk(body.ops):
        if isinstance(op, Split | Join | Collective):
            named |= set(op.axes)
        if isinstance(op, AxisIndex):
            named.add(op.axis)
    return named


def _unused(body: Body, axes: list[Axis]) -> Iterator[Finding]:
    if not is_sharded(body):
        if any(axis.size > 1 for axis in axes):
            yield UnusedAxis.not_sharded()
        return
    named = axes_used(body)
    first = next((op for op in walk(body.ops) if isinstance(op, Split | Join)), None)
    for axis in axes:
        if axis not in named and axis.size > 1:
            yield UnusedAxis.from_operations(axis, first.where if first else None)


def _gathered_to_reduce(body: Body) -> Iterator[Finding]:
    readers: dict[Var, list[Op]] = {}
    for op in walk(body.ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append(op)
    for op in collectives_in(body.ops):
        users = readers.get(op.outs[0], [])
        reduces = [
            user for user in users if isinstance(user, Leaf) and of(user.name).acts == "reduces"
        ]
        if op.name == "all_gather" and users and reduces == users and op.outs[0].bytes >= LARGE:
            yield GatheredToReduce.from_operations(op)


def maker_of(body: Body, atom: Atom) -> Op | None:
    """Return the operation that made a value; None for an input or a constant."""
    return next((op for op in walk(body.ops) if any(out is atom for out in op.outs)), None)

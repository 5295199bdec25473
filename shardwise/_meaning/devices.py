"""A walk that keeps the devices along one axis apart: for pipelines and rings.

Where the devices along an axis do different things (the first stage reads, the last one has the
loss) or send values to each other, one expression for all of them proves little. Here a value that
differs along the axis is `Many`: one meaning for each device. A coordinate is then a number, a mask
is a constant, a `ppermute` is a list in another order, and loops are unrolled, so that the last
stage's result is recognized as the composition of all stages. The loops of the program on one
device are unrolled too.

A value that one expression describes on all devices (parameters that are merely split) stays one
value as long as it is not combined with a `Many`. With `entirely`, all values are kept apart from
the start; then the devices' shares of a sum are distinguished too and may be sent on. The cost
grows with the number of devices and steps, so this is tried second, on small programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._mesh import Axis
from .._program import AxisIndex, Body, Collective, Cond, Join, Op, Scan, Split, While, walk
from . import term as T
from .algebra import MOVES
from .align import align_but
from .bits import dtype_of
from .branches import chosen
from .collectives import NEEDS, join, note_skipping
from .elementwise import sums
from .indexing import Push
from .leaves import made_leaf
from .loops import by_symbols, no_iterations, read_loop
from .notes import Loop
from .rules import admit
from .value import (
    Unknown,
    Value,
    axes_in,
    hide,
    local_size,
    part_of,
    thickened,
    thinned,
    tidy_dim,
    uncut,
    whole,
    whole_shape,
    whole_size,
    with_dim,
)
from .walk import Walk

STEPS = 200_000
"""The maximum number of operations to walk, counted for all devices and steps."""


@dataclasses.dataclass(frozen=True)
class Many:
    """A value that differs along the axis: one meaning for each device."""

    values: tuple[Value, ...]


class TooLong(Exception):
    """The program has too many steps to be unrolled."""


class DeviceWalk(Walk):
    """A walk that keeps the devices along `axis` apart and unrolls loops."""

    def __init__(
        self,
        axis: Axis | None,
        reference: Walk | None = None,
        entirely: bool = False,
        one_iteration: bool = False,
    ):
        super().__init__(reference)
        self.axis, self.entirely = axis, entirely
        self.push = Push()
        self.one_iteration = one_iteration
        self.strategies = (no_iterations, DeviceWalk.by_iteration, DeviceWalk.unrolled)

    @property
    def size(self) -> int:
        """The number of devices along the axis."""
        return self.axis.size if self.axis is not None else 1

    def remember(self, op: Op, ins: list[Any], outs: list[Any]) -> None:
        if self.count > STEPS:
            raise TooLong
        for out in outs:
            values = out.values if isinstance(out, Many) else (out,)
            self.seen.update(v.term for v in values)

    def apply(self, op: Op, ins: list[Any]) -> list[Any]:
        outs = self.applied(op, ins)
        for out, var in zip(outs, op.outs, strict=True):
            for value in out.values if isinstance(out, Many) else (out,):
                assert value.local == tuple(var.shape), (op, value.dims, var.shape)
        return outs

    def applied(self, op: Op, ins: list[Any]) -> list[Any]:
        """Return the meanings of an operation's results, for each device where they differ."""
        if isinstance(op, AxisIndex) and op.axis == self.axis:
            return [self.merged([whole((k, T.ONE)) for k in range(self.size)])]
        try:
            if isinstance(op, Collective) and op.name == "ppermute" and op.axes == (self.axis,):
                ins = [self.parts(v) for v in ins]
            alike = not any(isinstance(v, Many) for v in ins) and not self.asked_in(op)
            if isinstance(op, Scan):
                return read_loop(self, op, ins)
            if isinstance(op, Split) and alike and self.entirely:
                return [self.parts(v) for v in super().apply(op, ins)]
            return super().apply(op, ins) if alike else self.apart_each(op, ins)
        except Unknown as unknown:
            return self.opaque(op, [v for v in ins if isinstance(v, Value)], unknown)

    def asked_in(self, op: Op) -> bool:
        """Return whether a body of the operation uses the coordinate along the axis."""
        ops = [inner for body in op.bodies for inner in walk(body.ops)]
        return any(isinstance(inner, AxisIndex) and inner.axis == self.axis for inner in ops)

    def apart_each(self, op: Op, ins: list[Any]) -> list[Any]:
        match op:
            case Collective() if self.axis in op.axes:
                if len(op.axes) > 1:
                    raise Unknown("a collective over several axes at once")
                if len(ins) > 1:
                    raise Unknown(f"{op.name} of values that differ between devices")
                return [self.exchange(op, ins[0])]
            case Join():
                return [self.join(op, ins[0])]
            case Split() if self.axis in op.axes:
                raise Unknown("a part of a value that differs between devices")
            case Cond():
                return self.branched(op, ins)
            case While():
                raise Unknown("a loop of unknown length whose values differ between devices")
            case _:
                rows = [self.each(op, [self.at(v, k) for v in ins]) for k in range(self.size)]
                return [self.merged(list(column)) for column in zip(*rows, strict=True)]

    def each(self, op: Op, ins: list[Value]) -> list[Value]:
        return super().apply(op, ins)

    def at(self, v: Value | Many, k: int) -> Value:
        """Return the value of device `k`."""
        return v.values[k] if isinstance(v, Many) else self.part(v, k)

    def part(self, v: Value, k: int) -> Value:
        """Return device `k`'s part of a value that describes all devices."""
        axis = self.axis
        if axis is None or axis not in v.axes | v.debts:
            return v
        if axis in v.debts:
            raise Unknown("a share of a sum meets values that differ between devices", v.debts)
        for d, dim in enumerate(v.dims):
            if len(dim) == 1 and dim[0][1] == (axis,):
                size = dim[0][0] // axis.size
                v = v.having(v.scaled, dims=with_dim(v.dims, d, uncut(dim[0][0])))
                return part_of(v, d, k * size, size)
        v = hide(v, axis)
        hidden = tuple(a for a in v.hidden if a != axis)
        return v.having(self.push.element(v.scaled, v.hidden.index(axis), k), hidden=hidden)

    def parts(self, v: Value | Many) -> Value | Many:
        """Return the value of each device, where it can be derived."""
        if isinstance(v, Many) or self.axis in v.debts or self.axis not in v.axes:
            return v
        return self.merged([self.part(v, k) for k in range(self.size)])

    def merged(self, values: list[Value]) -> Value | Many:
        """Return one value if all devices have the same, else a `Many`."""
        return values[0] if all(v == values[0] for v in values) else Many(tuple(values))

    # --- branches and loops

    def branched(self, op: Cond, ins: list[Any]) -> list[Any]:
        """Walk all branches for all devices, which may communicate in them, then choose."""
        index, *operands = ins
        rows = [self.run(branch, operands) for branch in op.branches]
        return [
            self.merged(
                [
                    chosen(self, self.at(index, k), [self.at(case, k) for case in column])
                    for k in range(self.size)
                ]
            )
            for column in zip(*rows, strict=True)
        ]

    def by_iteration(self, loop: Loop) -> list[Value] | None:
        """Walk one iteration on each device, if requested and the carry is one value."""
        if not self.one_iteration or loop.op.length <= 1:
            return None
        if loop.op.length > self.size:  # one round of a ring is unrolled
            likes = [v for v in loop.carry if isinstance(v, Value)]
            carry = [self.as_one(v, likes) for v in loop.carry]
            loop = dataclasses.replace(loop, carry=carry)
        apart = any(isinstance(v, Many) for v in (*loop.carry, *loop.xs))
        return self.unrolled(loop) if apart else by_symbols(self, loop)

    def unrolled(self, loop: Loop) -> list[Any]:
        """Walk all iterations."""
        op, carry = loop.op, loop.carry
        if op.length * max(1, len(op.body.ops)) > STEPS // 8:
            raise TooLong
        if not op.length:
            raise Unknown("a loop of no steps")
        stacked: list[list[Any]] = []
        for i in range(op.length):
            at = op.length - 1 - i if op.reverse else i
            slices = [self.step(x, at) for x in loop.xs]
            outs = self.run(op.body, [*loop.consts, *carry, *slices])
            carry = outs[: op.carry]
            stacked.append(outs[op.carry :])
        if op.reverse:
            stacked.reverse()
        return [*carry, *(self.stack(list(column)) for column in zip(*stacked, strict=True))]

    def iteration(self, body: Body, ins: Sequence[Any], given: Sequence[Value]) -> list[Value]:
        """Walk one iteration on each device, then cut carried values as they were before."""
        outs = self.run(body, [self.parts(v) for v in ins] if self.one_iteration else ins)
        likes = [[carried, *given] for carried in given] + [[*given]] * (len(outs) - len(given))
        rows = zip(outs, likes, strict=False)
        return [self.together(v, options) if isinstance(v, Many) else v for v, options in rows]

    def together(self, v: Many, likes: Sequence[Value]) -> Value:
        """Return the values of all devices as one value, cut as one of `likes` is."""
        for like in likes:
            cuts = [d for d, dim in enumerate(like.dims) if axes_in([dim]) == {self.axis}]
            if len(cuts) == 1 and all(value.local == like.local for value in v.values):
                (d,) = cuts
                result = concatenated(self, v.values, d)
                cut = tidy_dim([(whole_size(result.dims[d]), like.dims[d][0][1])])
                if local_size(cut) == like.local[d]:
                    return result.having(result.scaled, dims=with_dim(result.dims, d, cut))
        raise Unknown("a loop gives values that differ between devices in another way than before")

    def as_one(self, v: Value | Many, likes: Sequence[Value]) -> Value | Many:
        """Return the initial carry of a loop as one value where possible."""
        try:
            return self.together(v, likes) if isinstance(v, Many) else v
        except Unknown:
            return v

    def step(self, x: Any, i: int) -> Any:
        """Return element `i` of a value that a loop scans over."""
        if isinstance(x, Value) and self.axis in axes_in(x.dims[:1]):
            x = Many(tuple(self.part(x, k) for k in range(self.size)))
        if isinstance(x, Many):
            return self.merged([element(v, i) for v in x.values])
        return element(x, i)

    def stack(self, values: list[Any]) -> Any:
        """Stack what a loop returns at each step."""
        if any(isinstance(v, Many) for v in values):
            rows = [[self.at(v, k) for v in values] for k in range(self.size)]
            return self.merged([stack(self, row) for row in rows])
        return stack(self, values)

    # --- communication between devices

    def exchange(self, op: Collective, v: Many) -> Value | Many:
        if op.groups is not None:
            raise Unknown(f"{op.name} within groups of devices")
        admit(op, NEEDS.get(op.name, MOVES), [dtype_of(atom) for atom in op.ins])
        values = list(v.values)
        match op.name:
            case "psum":
                return self.total(op, values)
            case "pmax" | "pmin":
                return self.folded(op, values)
            case "ppermute":
                sender: list[int] = [-1] * self.size
                for source, target in op.params["perm"]:
                    sender[target] = source
                return self.merged([values[s] if s >= 0 else nothing(values[0]) for s in sender])
            case "pbroadcast":
                return values[op.params["source"]]
            case "all_gather":
                d = op.params["dimension"]
                if not op.params["tiled"]:
                    values = [thickened(value, d) for value in values]
                return concatenated(self, values, d)
            case "psum_scatter" if op.params["tiled"]:
                return self.dealt(self.total(op, values), op.params["dimension"])
            case "all_to_all":
                split, concat = op.params["split"], op.params["concat"]
                rows = [self.dealt(value, split) for value in values]
                return self.merged(
                    [
                        concatenated(self, [self.at(row, k) for row in rows], concat)
                        for k in range(self.size)
                    ]
                )
        raise Unknown(f"{op.name} of values that differ between devices")

    def total(self, op: Op, values: list[Value]) -> Value:
        total = values[0]
        for value in values[1:]:
            (total,) = sums(self, made_leaf(op, "add", op.ins * 2, op.outs[0]), [total, value])
        return total

    def folded(self, op: Collective, values: list[Value]) -> Value:
        out = values[0]
        for value in values[1:]:
            (out,) = self.each(made_leaf(op, op.name[1:], op.ins * 2, op.outs[0]), [out, value])
        note_skipping(self, op, out)
        return out

    def dealt(self, v: Value, d: int) -> Value | Many:
        size = v.local[d] // self.size
        return self.merged([part_of(v, d, k * size, size) for k in range(self.size)])

    def join(self, op: Join, v: Many) -> Value:
        place = next((d for d, row in enumerate(op.placement) if self.axis in row), None)
        rest = dataclasses.replace(
            op,
            placement=tuple(tuple(a for a in row if a != self.axis) for row in op.placement),
            replicated=tuple(a for a in op.replicated if a != self.axis),
        )
        if place is not None and len(op.placement[place]) > 1:
            raise Unknown("a result split over several axes along one dimension")
        if place is None:
            raise Unknown("a result that is declared the same differs between devices")
        return concatenated(self, [join(self, rest, value) for value in v.values], place)


def nothing(v: Value) -> Value:
    """Return zeros of the same shape and cut."""
    return v.having(T.zero(v.term.shape), owed=frozenset())


def element(x: Value, i: int) -> Value:
    """Return element `i` along the first dimension."""
    return thinned(part_of(x, 0, i, 1), [0])


def stack(w: Walk, values: Sequence[Value]) -> Value:
    """Stack values along a new first dimension."""
    return concatenated(w, [thickened(v, 0) for v in values], 0)


def concatenated(w: Walk, values: Sequence[Value], d: int) -> Value:
    """Concatenate values along a dimension."""
    if len({v.owed for v in values}) > 1:
        raise Unknown("shares of sums beside whole values")
    # Where another axis cuts this dimension, the parts are not adjacent in the whole.
    values = align_but(values, [d], w.known)
    first = values[0]
    size = sum(whole_size(v.dims[d]) for v in values)
    dims = with_dim(first.dims, d, uncut(size))
    shape = whole_shape(dims, first.hidden)
    result = T.concatenate([v.scaled for v in values], d + len(first.hidden), shape)
    return first.having(result, dims=dims)


def speaks_of(body: Body) -> list[Axis]:
    """Return the axes whose coordinates a program uses, or along which it calls `ppermute`."""
    axes: dict[Axis, None] = {}

    def look(ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, AxisIndex) and op.axis.size > 1:
                axes[op.axis] = None
            elif isinstance(op, Collective) and op.name == "ppermute":
                axes.update(dict.fromkeys(a for a in op.axes if a.size > 1))
            for inner in op.bodies:
                look(inner.ops)

    look(body.ops)
    return list(axes)

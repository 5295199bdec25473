"""The memory that a loop over shards takes, and an estimate of its time."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..._mesh import Axis
from ..._program import Cond, Leaf, Op, Scan, Var
from .plan import BlockSum

Rates = tuple[tuple[float, float], ...]
"""Sizes in ascending order, each with the rate per second at that size."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The speed of a device, and its overheads."""

    products: Rates = ((1.0, 1e11),)
    """FLOP per second of a float32 matrix product. Small ones run on one core and are slower."""
    half_products: Rates = ((1.0, 1e11),)
    """The same in bfloat16."""
    bytes: Rates = ((1.0, 1e10),)
    """Bytes read or written per second, by the size of the data, which may fit into a cache."""
    fresh: float = 0.0
    """Seconds for a byte of newly allocated memory, each time a program runs."""
    retained: float = 0.0
    """Bytes up to which the allocator reuses memory."""
    start: float = 2e-6
    """Seconds to start an operation."""
    fill: float = 0.0
    """The minimum duration in seconds of a matrix product, which may not fill the device."""


@dataclasses.dataclass(frozen=True)
class LoopCost:
    """The inputs of the cost model for a loop over the devices along an axis."""

    axis: Axis
    ops: Sequence[Op]
    sliced: int = 0
    """Bytes that differ between devices: those of one are sliced from those of all."""
    keep: Sequence[Var] = ()
    """The values that are stored for all devices."""
    totals: int = 0
    """Bytes that are accumulated over the devices."""
    runs: int = 1
    """How often the loop runs while the program runs once."""

    def needed(self, at_once: int) -> int:
        """Estimate the bytes needed in addition to the stored values."""
        if at_once < self.axis.size:
            return at_once * self.per_device
        return at_once * (footprint(self.ops, self.keep) - self.stored)

    @functools.cached_property
    def per_device(self) -> int:
        """Estimate the bytes of one device."""
        return footprint(self.ops)

    @functools.cached_property
    def stored(self) -> int:
        """Return the bytes of one device that are stored."""
        return sum(var.bytes for var in self.keep)


def footprint(ops: Sequence[Op], keep: Sequence[Var] = ()) -> int:
    """Estimate the peak of live bytes on one device."""
    last = dict.fromkeys(keep, len(ops))
    for index, op in enumerate(ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                last[atom] = max(index, last.get(atom, 0))
    alive: set[Var] = set()
    live_bytes = peak = 0
    for index, op in enumerate(ops):
        nested = max((footprint(body.ops) for body in op.bodies), default=0)
        alive.update(op.outs)
        live_bytes += sum(var.bytes for var in op.outs)
        peak = max(peak, live_bytes + nested)
        for atom in {*op.ins, *op.outs}:
            if isinstance(atom, Var) and atom in alive and last.get(atom, index) <= index:
                alive.remove(atom)
                live_bytes -= atom.bytes
    return peak


@dataclasses.dataclass(frozen=True)
class OperationCost:
    """One operation on one device: how often it runs, and what it computes and moves."""

    times: int
    products: float
    half: bool
    moving: int
    """Bytes that grow with the number of devices."""
    fixed: int
    """Bytes that are the same for all of them, such as weights."""
    starts: float


FUSED = 0.25
"""The share of an operation's cost that is left once XLA has fused it with its neighbours."""


def seconds(machine: Machine, job: LoopCost, at_once: int) -> float:
    """Estimate the duration of a loop, each time it runs."""
    memory = job.needed(at_once)
    per_second = _rate(machine.bytes, at_once * job.per_device + job.totals)
    iteration = 3 * job.totals / per_second + 2 * machine.start
    for work in _costs(job.ops, job.axis, 1):
        rates = machine.half_products if work.half else machine.products
        count = at_once * work.products
        product = max(count / _rate(rates, count), machine.fill) if count else 0.0
        traffic = (at_once * work.moving + work.fixed) / per_second
        iteration += work.times * (work.starts * machine.start + max(product, traffic))
    size = job.axis.size
    allocation = machine.fresh * memory / job.runs if memory > machine.retained else 0.0
    moves = _moves(machine, job, per_second) if at_once < size else 0.0
    return size / at_once * iteration + allocation + moves


def _moves(machine: Machine, job: LoopCost, per_second: float) -> float:
    """Estimate the time to slice the inputs of each device, and to stack its stored values.

    Both are copied between the values of all devices and those of a few; stacks are initialized
    before.
    """
    size = job.axis.size
    rate = _rate(machine.bytes, size * (job.sliced + job.stored))
    return size * ((job.sliced + 2 * job.stored) / rate + (job.sliced + job.stored) / per_second)


def _rate(rates: Rates, size: float) -> float:
    """Interpolate the rate at a size between the measurements."""
    sizes, speeds = zip(*rates, strict=True)
    return float(np.interp(math.log(max(1.0, size)), np.log(sizes), speeds))


def _costs(ops: Sequence[Op], axis: Axis, times: int) -> Iterator[OperationCost]:
    for op in ops:
        if isinstance(op, BlockSum) and op.joint is not None:
            yield from (_cost(leaf, axis, times, joined=True) for leaf in op.joint.ops)
        elif isinstance(op, Leaf):
            yield _cost(op, axis, times)
        elif op.bodies:
            inner = times * op.length if isinstance(op, Scan) else times
            bodies = op.bodies[:1] if isinstance(op, Cond) else op.bodies
            for body in bodies:
                yield from _costs(body.ops, axis, inner)


def _cost(op: Leaf, axis: Axis, times: int, joined: bool = False) -> OperationCost:
    """Return the cost of one operation; if `joined`, of one result for all devices at once."""
    products = _products(op)
    written = sum(var.bytes for var in op.outs)
    if not products:
        traffic = int(written * 2 * FUSED)
        return OperationCost(
            times, 0.0, False, 0 if joined else traffic, traffic if joined else 0, FUSED
        )
    shares = [(atom.bytes, axis in atom.axes) for atom in op.ins if isinstance(atom, Var)]
    shares.append((written, not joined))
    moving = sum(size for size, moves in shares if moves)
    fixed = sum(size for size, moves in shares if not moves)
    half = op.outs[0].dtype.itemsize < 4
    return OperationCost(times, products, half, moving, fixed, 1.0)


def _products(op: Leaf) -> float:
    """Return the FLOP of a matrix product or a convolution."""
    if op.name not in ("dot_general", "conv_general_dilated"):
        return 0.0
    left, right = (tuple[int, ...](getattr(atom, "shape", ())) for atom in op.ins[:2])
    out = 2.0 * math.prod(op.outs[0].shape)
    if op.name == "dot_general":
        (contracted, _), _ = op.params["dimension_numbers"]
        return out * math.prod(left[d] for d in contracted)
    features = op.params["dimension_numbers"].rhs_spec[0]
    return out * math.prod(right) / max(1, right[features])

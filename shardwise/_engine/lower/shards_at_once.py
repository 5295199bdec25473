"""Choose how many shards to compute at once."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from ... import _jax
from ..._program import Atom, Cond, Leaf, Lit, Op, Var, While, walk
from ..._program.primitives import of
from .cost import LoopCost, Machine, seconds

LOG = logging.getLogger("shardwise")
SOME = Machine()


def _by_hardware(op: Leaf) -> bool:
    """Return whether its keys are of XLA's generator, which draws numbers for a whole batch."""
    return any("rbg" in str(getattr(atom, "dtype", "")) for atom in op.ins)


def _must_run_alone(op: Op) -> bool:
    """Return whether an operation is correct only if it runs for one device at a time."""
    if isinstance(op, Leaf):
        split = any(atom.axes for atom in op.ins)
        if split and op.primitive is not None and not _jax.can_batch(op.primitive):
            return True
        row = of(op.name)
        return op.effect or row.unbatchable or (row.random and _by_hardware(op))
    if isinstance(op, Cond) and op.ins[0].axes:
        # A vmapped cond runs both branches, so a loop that the branch guards may never end.
        return any(isinstance(inner, While) for body in op.bodies for inner in walk(body.ops))
    return False


def has_equal_columns(ops: Sequence[Op]) -> bool:
    """Return whether there is a product with a matrix of equal columns: `x @ jnp.ones(...)`.

    XLA on a CPU computes wrong sums of such products if there are several, up to JAX 0.12 at least:
    `jax.jit(lambda x: jnp.sum(x @ jnp.ones((4, 1000)), 0))(jnp.ones((8, 4)))`.
    """
    all_ops = list(walk(list(ops)))
    producers = {var: op for op in all_ops for var in op.outs}
    return any(_of_equal_columns(op, producers) for op in all_ops if isinstance(op, Leaf))


def _of_equal_columns(op: Leaf, producers: dict[Var, Op]) -> bool:
    if op.name != "dot_general":
        return False
    summed, batch = op.params["dimension_numbers"]
    return any(
        isinstance(atom, Var)
        and any(
            size > 1 and d not in (*its_summed, *its_batch) and _is_same_along(atom, d, producers)
            for d, size in enumerate(atom.shape)
        )
        for atom, its_summed, its_batch in zip(op.ins, summed, batch, strict=True)
    )


def _is_same_along(atom: Atom, dim: int, producers: dict[Var, Op]) -> bool:
    """Return whether all entries of a value along a dimension are known to be equal."""
    if isinstance(atom, Lit):
        return np.ndim(atom.value) == 0
    op = producers.get(atom)
    if not isinstance(op, Leaf):
        return False
    if op.name == "broadcast_in_dim":
        dims = list(op.params["broadcast_dimensions"])
        source = op.ins[0]
        return dim not in dims or (isinstance(source, Var) and source.shape[dims.index(dim)] == 1)
    return of(op.name).pointwise and all(
        _is_same_along(operand, dim, producers) for operand in op.ins
    )


@dataclasses.dataclass(frozen=True)
class Choice:
    """How many shards of a loop are computed at once, and why."""

    axis: str
    shards: int
    at_once: int
    line: str
    why: str

    def __str__(self) -> str:
        return f"{self.at_once} of {self.shards} shards over {self.axis!r} at once: {self.why}"


_choices: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
    "choices", default=None
)


@contextlib.contextmanager
def choosing() -> Iterator[list[Choice]]:
    """Collect the choices, loop by loop, while programs are lowered inside."""
    choices: list[Choice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def is_choosing() -> bool:
    """Return whether choices are being collected."""
    return _choices.get() is not None


@dataclasses.dataclass(frozen=True)
class Pace:
    """How many shards to compute at once: a number, or a choice by machine and memory."""

    shards: int | None = 1
    bytes: float = 0.0
    machine: Machine = SOME
    single: str = ""
    """The reason to compute one shard at a time, if any."""
    runs: int = 1
    """How often the surrounding loops run this while the program runs once."""

    def within(self, runs: int) -> Pace:
        """Return the same inside a loop with this many iterations."""
        return dataclasses.replace(self, runs=self.runs * runs)

    def chunk(self, job: LoopCost) -> tuple[int, Pace]:
        """Return how many devices at once, and what that leaves for inner loops."""
        axis = job.axis
        size, reason = self._choose(job)
        choice = Choice(axis.name, axis.size, size, str(job.ops[0].where), reason)
        choices = _choices.get()
        if choices is not None:
            choices.append(choice)
        inner = self.within(axis.size // size)
        if self.shards is None:
            LOG.debug("at_once='auto': %s", choice)
            return size, dataclasses.replace(inner, bytes=self.bytes / size)
        return size, dataclasses.replace(inner, shards=max(1, self.shards // size))

    def _choose(self, job: LoopCost) -> tuple[int, str]:
        if self.single:
            return 1, self.single
        if any(_must_run_alone(op) for op in walk(list(job.ops))):
            return 1, "it has an operation that cannot be computed for several devices together"
        shards = job.axis.size
        if self.shards is not None:
            return min(self.shards, shards), "as requested"
        sizes = [k for k in range(1, shards + 1) if shards % k == 0]
        fitting = [k for k in sizes if k == 1 or self._fits(k, job)]
        times = {k: seconds(self.machine, job, k) for k in fitting}
        return (size := _preferred(times, job)), _why(times, size, job, fitting == sizes)

    def _fits(self, size: int, job: LoopCost) -> bool:
        """Return whether `size` shards use a modest share of the memory, or little of it."""
        memory = job.needed(size) + job.totals
        return memory <= self.bytes and (_modest(size, job) or memory <= self.bytes * FREE)


def _modest(size: int, job: LoopCost) -> bool:
    """Return whether `size` shards and the totals stay within a share of what all shards use."""
    return size == 1 or size * job.per_device + job.totals <= SHARE * job.axis.size * job.per_device


def _preferred(times: dict[int, float], job: LoopCost) -> int:
    """Return the number of shards to compute at once, given the estimated times.

    Times are estimates. Within the share of the memory that may be used, more shards are preferred
    unless they are estimated to be clearly slower: too few do not fill the machine, and saving more
    memory than requested has no benefit. Above that share, a number of shards has to be clearly
    faster.
    """
    modest = {k: time for k, time in times.items() if _modest(k, job)}
    size = max(k for k, time in modest.items() if time <= ERROR * min(modest.values()))
    best = min(times.values())
    if ERROR * best < times[size]:
        return next(k for k, time in times.items() if time <= TOLERANCE * best)
    return size


SHARE = 0.25
"""The share of the memory of all shards that may be used, unless that is little."""

FREE = 1 / 64
"""The share of the available memory below which saving memory has no benefit."""

ERROR = 1.15
"""How far an estimated time may be from the measured one, relative to another estimate."""

TOLERANCE = 1.02
"""How much slower than the fastest number of shards a smaller one may be."""


def _why(times: dict[int, float], size: int, job: LoopCost, all_fit: bool) -> str:
    parts = [
        f"{k} would take about {_number(times[k] * 1e3)} ms and {_number(job.needed(k) / 1e6)} MB"
        for k in dict.fromkeys((1, size, max(times)))
    ]
    if not all_fit:
        parts.append("more too large a share of the memory")
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"

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
from .footprint import LoopMemory

LOG = logging.getLogger("shardwise")


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
    """How many shards to compute at once: a number, or as many as the memory suggests."""

    shards: int | None = 1
    bytes: float = 0.0
    """The memory that shards may take, if `shards` is None."""
    single: str = ""
    """The reason to compute one shard at a time, if any."""

    def chunk(self, job: LoopMemory) -> tuple[int, Pace]:
        """Return how many devices at once, and what that leaves for inner loops."""
        axis = job.axis
        size, reason = self._choose(job)
        choice = Choice(axis.name, axis.size, size, str(job.ops[0].where), reason)
        choices = _choices.get()
        if choices is not None:
            choices.append(choice)
        if self.shards is None:
            LOG.debug("at_once='auto': %s", choice)
            return size, dataclasses.replace(self, bytes=self.bytes / size)
        return size, dataclasses.replace(self, shards=max(1, self.shards // size))

    def _choose(self, job: LoopMemory) -> tuple[int, str]:
        if self.single:
            return 1, self.single
        if any(_must_run_alone(op) for op in walk(list(job.ops))):
            return 1, "it has an operation that cannot be computed for several devices together"
        shards = job.axis.size
        if self.shards is not None:
            return min(self.shards, shards), "as requested"
        whole = job.needed(shards)
        most = min(SHARE * shards * job.per_device, self.bytes)
        if whole <= max(most, LITTLE * self.bytes):
            return shards, f"they take {_megabytes(whole)}"
        fitting = [k for k in range(2, shards) if shards % k == 0 and job.needed(k) <= most]
        size = max(fitting, default=1)
        return size, f"{_megabytes(job.needed(size))}; all would take {_megabytes(whole)}"


SHARE = 0.25
"""The share of the memory of all shards that may be used, unless that is little."""

LITTLE = 1 / 512
"""The share of the available memory below which saving memory has no benefit."""


def _megabytes(size: float) -> str:
    number = size / 1e6
    return f"{number:,.0f} MB" if number >= 10 else f"{number:.2g} MB"

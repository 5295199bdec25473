"""Match the values of a program on a mesh with their twins on one device."""

from __future__ import annotations

import collections
import difflib
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._program import Atom, Body, Collective, Leaf, Op, Var
from ..._program.liveness import ancestors
from ..lift import Run, ValueOnMesh

Beside = Mapping[Var, tuple[ValueOnMesh, np.ndarray]]
"""Values on the mesh, each with its twin on one device."""

LIMIT = 1 << 24
"""At most this many bytes of values are compared."""


class Twins:
    """The values on the way to the results of a run that have a twin on one device."""

    def __init__(self, run: Run, base: Run):
        self.run, self.base = run, base

    @functools.cached_property
    def pairs(self) -> dict[Var, Var]:
        """Each value with its twin."""
        return dict(comparable(self.run.body, self.base.body))

    @functools.cached_property
    def values(self) -> Beside:
        """Each value as computed on the mesh, with that of its twin."""
        there, here = self.run.observe([*self.pairs]), self.base.observe([*self.pairs.values()])
        rows = zip(self.pairs, there, here, strict=True)
        return {var: (value, twin.first) for var, value, twin in rows}


@functools.lru_cache(maxsize=1)
def twins_between(run: Run, base: Run) -> Twins:
    """Return the twins of a run, evaluated once for all its results."""
    return Twins(run, base)


def comparable(body: Body, ones: Body) -> list[tuple[Var, Var]]:
    """Return the values worth comparing that have a twin on one device."""
    twins = twins_of(body, ones)
    needed = {out for atom in body.outs for op in ancestors(body, atom) for out in op.outs}
    needed -= _passed_on(body, twins)
    pairs: dict[Var, Var] = {}
    size = 0
    for op in body.ops:
        twin = twins.get(id(op))
        for var, mate in _pairs(op, twin) if twin else ():
            if not isinstance(var, Var) or not isinstance(mate, Var) or var.dtype != mate.dtype:
                continue
            if var in needed and var not in pairs and not _is_random(var.dtype):
                size += var.bytes * math.prod(axis.size for axis in var.axes)
                if size <= LIMIT:
                    pairs[var] = mate
    return [*pairs.items()]


def _passed_on(body: Body, twins: Mapping[int, Op | None]) -> set[Var]:
    """Return the values computed only from other devices' parts, by permutes that have no twin.

    Such a part is not what one device holds at that place, and need not be.
    """
    passed: set[Var] = set()
    for op in body.ops:
        away = isinstance(op, Collective) and op.name == "ppermute" and not twins.get(id(op))
        inputs = {atom for atom in op.ins if isinstance(atom, Var)}
        if away or (isinstance(op, Leaf | Collective) and inputs and inputs <= passed):
            passed |= {*op.outs}
    return passed


def _pairs(op: Op, twin: Op) -> list[tuple[Atom, Atom]]:
    """Pair the results and operands of two operations; operands may be made in different ways."""
    ins = zip(op.ins, twin.ins, strict=True) if len(op.ins) == len(twin.ins) else ()
    return [*zip(op.outs, twin.outs, strict=True), *ins]


def twins_of(body: Body, ones: Body) -> dict[int, Op | None]:
    """Return for each operation (by id) the same one in the program on one device."""
    matcher = difflib.SequenceMatcher(
        None, [_key(op) for op in body.ops], [_key(op) for op in ones.ops], autojunk=False
    )
    twins = {
        id(body.ops[block.a + offset]): ones.ops[block.b + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }
    return twins | _last_turns(body, ones)


def _last_turns(body: Body, ones: Body) -> dict[int, Op | None]:
    """Return the twins of operations that occur once in the source and run once per device.

    A Python loop over devices has one iteration on one device. Of several iterations only the last
    has a complete value: by then, what is passed around has visited every device.
    """
    rows, few = _by_key(body.ops), _by_key(ones.ops)
    twins: dict[int, Op | None] = {}
    for key, group in few.items():
        reps = rows.get(key, [])
        if len(reps) > len(group) and len(reps) % len(group) == 0 and group[0].where.file:
            twins |= dict.fromkeys(map(id, reps))
            twins |= zip(map(id, reps[-len(group) :]), group, strict=True)
    return twins


def _by_key(ops: Iterable[Op]) -> dict[Any, list[Op]]:
    by_key: dict[Any, list[Op]] = collections.defaultdict(list)
    for op in ops:
        by_key[_key(op)].append(op)
    return by_key


def _is_random(dtype: Any) -> bool:
    """Return whether a dtype is that of keys or random bits: there are many, and all differ."""
    return jnp.issubdtype(dtype, jax.dtypes.extended) or dtype == np.uint32


def _key(op: Op) -> tuple[Any, ...]:
    name = op.name if isinstance(op, Leaf | Collective) else ""
    where = op.where.file, op.where.line, op.where.column
    return type(op).__name__, name, len(op.outs), *where

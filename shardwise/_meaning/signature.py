"""Value numbering: values with equal numbers are equal expressions.

Two values have the same `exact` number if they are the same operations on the same inputs, and the
same `alike` number if they differ only in the positions of slices. So the iterations of an unrolled
Python loop are alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._program import Atom, Body, Leaf, Lit, Op, Var, shape_of
from .rules import frozen

_SHARED = {f.name for f in dataclasses.fields(Op)} | {"run"}
"""Fields of an operation that do not say what it computes of its operands."""

SMALL = 1024
"""Constants of more elements than this are equal only if they are the same object."""


@dataclasses.dataclass(frozen=True)
class ContiguousBlock:
    """A contiguous block of a value."""

    of: Atom
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    gone: tuple[int, ...] = ()
    """Dimensions of size 1 that are dropped."""


def window(op: Op, index: int) -> ContiguousBlock | None:
    """Return the block of its operand that a result is, if its position is constant."""
    if not isinstance(op, Leaf):
        return None
    if op.name == "slice" and not any(step != 1 for step in op.params["strides"] or ()):
        return ContiguousBlock(
            op.ins[0], tuple(op.params["start_indices"]), tuple(op.outs[0].shape)
        )
    if op.name == "dynamic_slice":
        places = [_place(atom) for atom in op.ins[1:]]
        shape, sizes = shape_of(op.ins[0]), tuple(op.params["slice_sizes"])
        if all(
            p is not None and 0 <= p <= n - s for p, n, s in zip(places, shape, sizes, strict=True)
        ):
            return ContiguousBlock(op.ins[0], tuple(p for p in places if p is not None), sizes)
    if op.name == "split":
        starts = [0] * len(op.outs[index].shape)
        starts[op.params["axis"]] = int(sum(op.params["sizes"][:index]))
        return ContiguousBlock(op.ins[0], tuple(starts), tuple(op.outs[index].shape))
    if op.name == "unstack":
        d, shape = op.params["axis"], shape_of(op.ins[0])
        starts = [index if e == d else 0 for e in range(len(shape))]
        return ContiguousBlock(op.ins[0], tuple(starts), (*shape[:d], 1, *shape[d + 1 :]), (d,))
    return None


def _place(atom: Atom) -> int | None:
    return int(atom.value) if isinstance(atom, Lit) and not np.shape(atom.value) else None


class Numbering:
    """The numbers of all values of a body."""

    def __init__(self, body: Body, known: dict[Any, int] | None = None):
        self._known: dict[Any, int] = {} if known is None else known
        self._inner = known is not None
        self.exact: dict[Var, int] = {}
        self.alike: dict[Var, int] = {}
        for i, var in enumerate(body.ins):
            key = ("in", i, tuple(var.shape), str(var.dtype)) if self._inner else object()
            self.exact[var] = self.alike[var] = self._number(key)
        for op in body.ops:
            self._enter(op)

    def of(self, atom: Atom) -> int:
        """Return the exact number of an operand."""
        return self.exact[atom] if isinstance(atom, Var) else self._number(_literal(atom))

    def _of_alike(self, atom: Atom) -> int:
        return self.alike[atom] if isinstance(atom, Var) else self._number(_literal(atom))

    def _number(self, key: Any) -> int:
        return self._known.setdefault(key, len(self._known))

    def _enter(self, op: Op) -> None:
        kind = self.kind(op)
        ins = tuple(map(self.of, op.ins))
        alike_ins = tuple(map(self._of_alike, op.ins))
        for j, var in enumerate(op.outs):
            aval = (tuple(var.shape), str(var.dtype))
            self.exact[var] = self._number((kind, ins, j, aval))
            part = window(op, j)
            if part is None:
                self.alike[var] = self._number(("alike", kind, alike_ins, j, aval))
            else:
                self.alike[var] = self._number(("window", self._of_alike(part.of), aval))

    def kind(self, op: Op) -> Any:
        """Return a hashable description of what an operation does."""
        if op.effectful:
            return object()
        own = (f.name for f in dataclasses.fields(op) if f.name not in _SHARED)
        return type(op), *(self._frozen(getattr(op, name)) for name in own)

    def _frozen(self, value: Any) -> Any:
        """Return a field of an operation; bodies are the same if their results are."""
        bodies = value if isinstance(value, tuple) else (value,)
        if bodies and all(isinstance(body, Body) for body in bodies):
            return tuple(map(self._body, bodies))
        return frozen(value)

    def _body(self, body: Body) -> tuple[int, ...]:
        inner = Numbering(body, self._known)
        return (len(body.ins), *map(inner.of, body.outs))


def _literal(atom: Lit) -> Any:
    try:
        x = np.asarray(atom.value)
    except TypeError:  # a random key
        return ("object", id(atom.value))
    if x.size > SMALL or x.dtype.hasobject:
        return ("object", id(atom.value))
    return ("literal", str(x.dtype), x.shape, x.tobytes())


def users(ops: Sequence[Op], outs: Sequence[Atom]) -> dict[Var, list[Op | None]]:
    """Return the operations that use each value; None stands for the results."""
    uses: dict[Var, list[Op | None]] = {}
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var):
                uses.setdefault(atom, []).append(op)
    for atom in outs:
        if isinstance(atom, Var):
            uses.setdefault(atom, []).append(None)
    return uses

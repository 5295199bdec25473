"""The operations a sharded program is made of.

A program is a flat list: calls are inlined, and a `shard_map` is no operation of its own but a
`Split` of each input, the body, and a `Join` of each output. So two `shard_map`s over the same
axes, such as a forward and a backward pass, meet in one list. Only control flow nests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _jax
from .._mesh import Axis, Placement
from .where import Where, where_of


class Var:
    """A value: its local shape and type, and (once annotated) the axes it differs over."""

    __slots__ = ("axes", "dtype", "shape", "weak")

    def __init__(self, shape: tuple[int, ...], dtype: Any, weak: bool = False):
        self.shape = shape
        self.dtype = dtype
        self.weak = weak
        self.axes: frozenset[Axis] = frozenset()

    def __repr__(self) -> str:
        axes = f" over {sorted(self.axes)}" if self.axes else ""
        return f"<{self.kind}{list(self.shape)}{axes}>"

    @property
    def kind(self) -> str:
        """The name of its type; NumPy has none for a tangent of whole numbers, `float0`."""
        names = getattr(self.dtype, "names", None)
        return names[0] if names else str(self.dtype)

    @property
    def bytes(self) -> int:
        """Size of one device's part."""
        count = 1
        for size in self.shape:
            count *= size
        return count * getattr(self.dtype, "itemsize", 4)


@dataclasses.dataclass(frozen=True, eq=False)
class Lit:
    """A constant."""

    value: Any
    axes: frozenset[Axis] = frozenset()


Atom = Var | Lit


@dataclasses.dataclass(eq=False)
class Op:
    """One operation. `scope` holds the manual axes around it, in mesh order."""

    ins: list[Atom]
    outs: list[Var]
    scope: tuple[Axis, ...] = dataclasses.field(default=(), kw_only=True)
    source: Any = dataclasses.field(default=None, kw_only=True, repr=False)
    calls: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True, repr=False)
    """The sources of the calls around it, from the inside out."""
    flow: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True, repr=False)
    """The sources of the loops and branches around it: a derivative marks these, not what is in."""
    # Filled in by `annotate`:
    needs: frozenset[Axis] = dataclasses.field(default=frozenset(), kw_only=True)
    """It has to run once for each coordinate along these axes."""
    meets: frozenset[Axis] = dataclasses.field(default=frozenset(), kw_only=True)
    """Devices along these axes exchange something here."""

    @functools.cached_property
    def where(self) -> Where:
        """Its line, or that of the innermost call around it that has one; looked up when asked."""
        return where_of(self.source, *self.calls)

    @property
    def bodies(self) -> tuple[Body, ...]:
        """The nested lists, for control flow."""
        return ()

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass of a derivative."""
        sources = (self.source, *self.calls, *self.flow) if self.source is not None else ()
        return any(_jax.is_backward(source) for source in sources)

    @property
    def back_through_all(self) -> bool:
        """Whether it belongs to the backward pass of the outermost derivative around it."""
        sources = (self.source, *self.calls) if self.source is not None else ()
        return any(_jax.is_outermost_backward(source) for source in sources)

    @property
    def differentiated(self) -> bool:
        """Whether it belongs to the forward pass of something that is differentiated."""
        sources = (self.source, *self.calls) if self.source is not None else ()
        return any(_jax.is_forward(source) for source in sources)

    @property
    def effectful(self) -> bool:
        """Whether running it does something besides giving results."""
        return any(op.effectful for body in self.bodies for op in body.ops)


@dataclasses.dataclass(eq=False)
class Body:
    """A list of operations with its inputs and outputs."""

    ins: list[Var]
    ops: list[Op]
    outs: list[Atom]
    dropped: list[Op] = dataclasses.field(default_factory=list, repr=False)
    """What the program says and nothing comes of: JAX does not run it either."""


@dataclasses.dataclass(eq=False)
class Leaf(Op):
    """Anything that a device does by itself."""

    name: str
    run: Callable[..., list[Any]]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    effect: bool = False

    @property
    def primitive(self) -> Any:
        """Of what is one equation of JAX and does nothing else; else None."""
        return self.run.primitive if isinstance(self.run, _jax.Equation) else None

    @property
    def effectful(self) -> bool:
        return self.effect


@dataclasses.dataclass(eq=False)
class AxisIndex(Op):
    """A device's own coordinate."""

    axis: Axis


@dataclasses.dataclass(eq=False)
class Split(Op):
    """A global array becomes each device's part of it: an `in_spec`."""

    placement: Placement
    name: str = ""
    """What the body calls it, where that is known."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes it is split over."""
        return tuple(axis for row in self.placement for axis in row)


@dataclasses.dataclass(eq=False)
class Join(Op):
    """Parts become a global array: an `out_spec`."""

    placement: Placement
    replicated: tuple[Axis, ...] = ()
    """Axes that the spec does not mention: the parts are promised to be the same along them."""
    checked: bool = True
    """Whether JAX has held the program to that promise."""

    axes = Split.axes


@dataclasses.dataclass(eq=False)
class Collective(Op):
    """Devices exchange values. `name` and `params` as in the table of `_collectives`."""

    name: str
    axes: tuple[Axis, ...]
    params: dict[str, Any]
    groups: tuple[tuple[int, ...], ...] | None = None

    def __str__(self) -> str:
        names = [axis.name for axis in self.axes]
        over = repr(names[0]) if len(names) == 1 else str(tuple(names))
        return f"{self.name} over {over}, {self.where}"


@dataclasses.dataclass(eq=False)
class Scan(Op):
    """A loop of known length. Inputs: constants, carried values, stacked inputs."""

    body: Body
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: int | bool

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)


@dataclasses.dataclass(eq=False)
class While(Op):
    """A loop while a condition holds. Inputs: constants of condition and body, carried values."""

    cond: Body
    body: Body
    cond_consts: int
    body_consts: int

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.cond, self.body)


@dataclasses.dataclass(eq=False)
class Cond(Op):
    """One of several branches. Inputs: the index, then the operands of every branch."""

    branches: tuple[Body, ...]

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.branches


def walk(ops: list[Op]) -> Iterator[Op]:
    """All operations, those in nested bodies too, in program order."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from walk(body.ops)


def with_bodies(op: Op, change: Callable[[Body], Body]) -> Op:
    """An operation with other bodies."""
    match op:
        case Scan():
            return dataclasses.replace(op, body=change(op.body))
        case While():
            return dataclasses.replace(op, cond=change(op.cond), body=change(op.body))
        case Cond():
            return dataclasses.replace(op, branches=tuple(map(change, op.branches)))
    return op


def is_sharded(body: Body) -> bool:
    """Whether anything of a program is written for the devices of a mesh: a shard_map, a pmap."""
    return any(op.scope or isinstance(op, Split | Join) for op in walk(body.ops))


def collectives_in(ops: list[Op]) -> Iterator[Collective]:
    """All collectives, in program order."""
    return (op for op in walk(ops) if isinstance(op, Collective))


def pairs(op: Op) -> Iterator[tuple[Body, list[tuple[Atom, Atom, int]]]]:
    """The bodies of an operation, with the values outside that are theirs inside."""
    match op:
        case Scan():
            fixed = op.consts + op.carry
            ins = [(a, v, int(i >= fixed)) for i, (a, v) in enumerate(_zip(op.ins, op.body.ins))]
            outs = [
                (a, v, int(i >= op.carry)) for i, (a, v) in enumerate(_zip(op.outs, op.body.outs))
            ]
            yield op.body, [*ins, *outs]
        case While():
            start = op.cond_consts
            ins = _zip(op.ins[start:], op.body.ins)
            yield op.body, [(a, v, 0) for a, v in [*ins, *_zip(op.outs, op.body.outs)]]
        case Cond():
            for branch in op.branches:
                both = [*_zip(op.ins[1:], branch.ins), *_zip(op.outs, branch.outs)]
                yield branch, [(a, v, 0) for a, v in both]


def _zip(outer: list, inner: list) -> list[tuple[Atom, Atom]]:
    return list(zip(outer, inner, strict=True))


def var_of(v: Any) -> Var:
    """A value for a variable of a jaxpr."""
    shape, dtype = _jax.shape_of(v.aval)
    return Var(shape, dtype, getattr(v.aval, "weak_type", False))


def outs_of(eqn: Any) -> list[Var]:
    """Values for the results of an equation."""
    return [var_of(v) for v in eqn.outvars]


def like(atom: Atom) -> Var:
    """A new value of the same type."""
    if isinstance(atom, Lit):
        value = np.asarray(atom.value)
        return Var(value.shape, value.dtype)
    return Var(atom.shape, atom.dtype, atom.weak)


def twin(var: Var) -> Var:
    """A new value of the same type that differs over the same axes."""
    out = like(var)
    out.axes = var.axes
    return out

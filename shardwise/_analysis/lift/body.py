"""Rewriting of programs to float64, in which rounding does not matter.

Two correct programs that sum in different orders differ only by rounding, but in bfloat16 by as
much as a mistake does. So every floating-point value is evaluated in float64, and every complex one
in complex128, whatever dtype the program declares; then they agree to ten digits or more. This is a
pass over the list of operations:

    casts                 between floating-point dtypes become the identity
    dtypes in parameters  (`new_dtype`, `preferred_element_type`, `dtype`) are widened, and so are
                          the bodies of scatters and reductions
    ranges                stay those of the declared dtypes: what would be infinite in float16 is
                          infinite (`in_range`)
    bits                  bit casts, `nextafter`, FFI and Pallas calls and other operations that do
                          not accept float64 run in their declared dtypes. Values computed from
                          their results have the accuracy of those dtypes (`Lifted.eps`)
    integers, keys        are unchanged: wrap-around is part of the program
"""

from __future__ import annotations

import dataclasses

from ..._program import Atom, Body, Collective, Cond, Leaf, Lit, Op, Scan, Var, While, twin
from .leaves import beside, lifted_leaf, retyped, runs_declared
from .quantities import Quantities
from .ranges import in_range, may_leave, one_by_one, sums_one_by_one
from .widths import constant, eps_of, wide_dtype


@dataclasses.dataclass(frozen=True, eq=False)
class Lifted:
    """A lifted program, and the map from original values to lifted ones."""

    body: Body
    wide: dict[Var, Var]
    accuracy: dict[Var, float]
    unbounded: dict[Var, Var]
    """For values that may leave the range of their dtype, their values without that range."""

    def of(self, atom: Atom) -> Atom:
        """Return the lifted value for one of the original program."""
        return Lit(constant(atom.value)) if isinstance(atom, Lit) else self.wide[atom]

    def eps(self, atom: Atom) -> float:
        """Return the spacing of the dtype that a value has the accuracy of; 0 for float64."""
        return 0.0 if isinstance(atom, Lit) else self.accuracy.get(atom, 0.0)


def lift(body: Body, vast: bool = False, unrounded: bool = False) -> Lifted:
    """Lift a program.

    With `vast`, the arguments are so large that any product of them may leave the range of float32.
    With `unrounded`, rounding to integers is the identity as well.
    """
    walk = _Lift(vast, Quantities(body) if unrounded else None)
    lifted = walk.body(body)
    return Lifted(lifted, walk.wide, walk.accuracy, walk.unbounded)


class _Lift:
    def __init__(self, vast: bool, quantities: Quantities | None):
        self.vast = vast
        self.wide: dict[Var, Var] = {}
        self.accuracy: dict[Var, float] = {}
        self.unbounded: dict[Var, Var] = {}
        self.quantities = quantities

    def body(self, body: Body) -> Body:
        ins = [self.var(var) for var in body.ins]
        ops = [new for op in body.ops for new in self.op(op)]
        return Body(ins, ops, [self.atom(atom) for atom in body.outs])

    def var(self, var: Var) -> Var:
        if var not in self.wide:
            quantity = self.quantities is not None and var in self.quantities.variables
            dtype = wide_dtype(float if quantity else var.dtype)
            self.wide[var] = retyped(var, dtype)
        return self.wide[var]

    def atom(self, atom: Atom) -> Atom:
        if isinstance(atom, Lit):
            return dataclasses.replace(atom, value=constant(atom.value))
        return self.var(atom)

    def op(self, op: Op) -> list[Op]:
        self.follow(op)
        ins, outs = [self.atom(atom) for atom in op.ins], [self.var(var) for var in op.outs]
        match op:
            case Leaf() if self.quantities and self.quantities.concerns(op):
                new = self.quantities.lifted(op, ins, outs)
            case Leaf():
                new = lifted_leaf(op, ins, outs)
            case Scan():
                new = dataclasses.replace(op, ins=ins, outs=outs, body=self.body(op.body))
            case While():
                bodies = {"cond": self.body(op.cond), "body": self.body(op.body)}
                new = dataclasses.replace(op, ins=ins, outs=outs, **bodies)
            case Cond():
                branches = tuple(map(self.body, op.branches))
                new = dataclasses.replace(op, ins=ins, outs=outs, branches=branches)
            case Collective() if sums_one_by_one(op):
                first, new = one_by_one(op, ins, outs)
                return [first, *self.ranged(op, new)]
            case _:
                new = dataclasses.replace(op, ins=ins, outs=outs)
        return self.ranged(op, new)

    def ranged(self, op: Op, new: Op) -> list[Op]:
        """Apply the range of the declared dtype to values that may leave it."""
        rows: list[Op] = [new]
        if not isinstance(op, Leaf | Collective):
            return rows
        for index, declared in enumerate(op.outs):
            out = new.outs[index]
            run = in_range(declared.dtype) if out.dtype != declared.dtype else None
            if run is not None and may_leave(op, declared.dtype, self.vast):
                new.outs[index] = self.unbounded[declared] = unbounded = twin(out)
                rows.append(beside(new, unbounded, out, "in_range", run))
        return rows

    def follow(self, op: Op) -> None:
        """Record the results that have the accuracy of a narrower dtype than float64."""
        inner = max((self.accuracy_in(body) for body in op.bodies), default=0.0)
        inputs = [self.accuracy.get(atom, 0.0) for atom in op.ins if isinstance(atom, Var)]
        declared = declared_eps(op) if isinstance(op, Leaf) else 0.0
        accuracy = max([declared, inner, *inputs])
        if accuracy:
            self.accuracy.update(dict.fromkeys(op.outs, accuracy))

    def accuracy_in(self, body: Body) -> float:
        for op in body.ops:
            self.follow(op)
        accuracies = (self.accuracy.get(var, 0.0) for op in body.ops for var in op.outs)
        return max(accuracies, default=0.0)


def declared_eps(op: Leaf) -> float:
    """Return the spacing of the dtype in which an operation rounds its operands; 0 if it does not.

    Bits that are reinterpreted as numbers are not rounded: random numbers are equal on every mesh.
    """
    if not runs_declared(op):
        return 0.0
    operands = [atom for atom in op.ins if isinstance(atom, Var)]
    opaque = [*operands, *op.outs] if op.name != "bitcast_convert_type" else operands
    return max((eps_of(var.dtype) for var in opaque), default=0.0)

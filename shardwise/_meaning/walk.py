"""The walk over a program, which gives every value its meaning, in program order.

The first walk goes over the reference: the program on a mesh with axes of size 1, or a plain
function. The second goes over the program on the real mesh. Where a local operation has several
true readings, the second walk takes the one whose term the first has seen. The result of an
operation that no rule covers is *this device's* result of it, a term that equals no other, so that
nothing is equal by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._mesh import Axis
from .._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Cond,
    Join,
    Leaf,
    Lit,
    Op,
    Scan,
    Split,
    Var,
    While,
    primitives,
)
from .._program.primitives import EXCHANGES
from . import (  # the rules enter themselves into the table
    arrange,  # noqa: F401
    contract,  # noqa: F401
    lookup,  # noqa: F401
    matrices,  # noqa: F401
    randomness,  # noqa: F401
    windows,  # noqa: F401
)
from . import term as T
from .bits import dtype_of
from .branches import choose_branch
from .collectives import exchange, join, split
from .loops import STRATEGIES, loop_while, read_loop
from .notes import Mistake, Notes
from .rules import RULES, frozen
from .term import Scaled
from .value import Unknown, Value, hidden_sizes, uncut, whole, with_hidden

UNKEYED = primitives.names(lambda p: p.acts == "draws" and p.random) - {*RULES}
"""Draws for which there is no rule: some have a state, which is not an operand."""


class Walk(Notes):
    """One walk over one program."""

    strategies = STRATEGIES

    def anew(self) -> Walk:
        nested = Walk(self.reference, self)
        nested.depth, nested.count = self.depth + 1, self.count
        return nested

    def run(self, body: Body, ins: Sequence[Value]) -> list[Value]:
        """Return the meanings of a body's results."""
        env: dict[Any, Value] = dict(zip(body.ins, ins, strict=True))
        for op in body.ops:
            T.in_time()
            self.count += 1
            values = [self.read(env, atom) for atom in op.ins]
            outs = self.apply(op, values)
            for var, out in zip(op.outs, outs, strict=True):
                env[var] = out
                self.makers[var] = op
            self.remember(op, values, outs)
        return [self.read(env, atom) for atom in body.outs]

    def read(self, env: dict[Any, Value], atom: Atom) -> Value:
        """Return the meaning of an operand."""
        return whole(literal(atom.value)) if isinstance(atom, Lit) else env[atom]

    def remember(self, op: Op, ins: list[Value], outs: list[Value]) -> None:
        """Record the terms, and each operation that makes one unlike any in the reference."""
        for out in outs:
            if self.reference is None and not out.shape:
                self.coefs.setdefault(T.core(out.term), set()).add(out.coef)
            if out.term not in self.seen:
                self.seen.add(out.term)
                if not self.familiar(out.term) and all(self.familiar(v.term) for v in ins):
                    self.strays.setdefault(out.term, (self.count, op))
            if out.born is op and out.owed:
                self.shares |= {id(op)} if self.known(out.term) else set()
                for axis in sorted(out.debts):
                    self.note("owes", op, axis, out)

    def apply(self, op: Op, ins: list[Value]) -> list[Value]:
        """Return the meanings of an operation's results; results without elements are zero."""
        empty = [whole(T.zero(tuple(var.shape))) for var in op.outs if 0 in var.shape]
        if empty and len(empty) == len(op.outs):
            return empty
        rows = zip(self.followed(op, ins), op.outs, strict=True)
        return [whole(T.zero(tuple(var.shape))) if 0 in var.shape else v for v, var in rows]

    def followed(self, op: Op, ins: list[Value]) -> list[Value]:
        """Return the meanings by the rules; without one, use `apart` or `opaque`."""
        try:
            outs = self.rule(op, ins)
        except Unknown as unknown:
            owing = any(v.owed for v in ins)
            drawn = op.name in UNKEYED if isinstance(op, Leaf) else False
            if isinstance(op, Leaf) and not owing and not op.effectful and not drawn:
                return self.apart(op, ins)
            return self.opaque(op, ins, unknown)
        for out, var in zip(outs, op.outs, strict=True):
            assert out.local == tuple(var.shape), (op, out.dims, var.shape)
            assert out.term.shape == (*hidden_sizes(out.hidden), *out.shape), (op, out)
            cuts = [axis for dim in out.dims for _, axes in dim for axis in axes]
            apart = {*cuts, *out.hidden, *out.debts}
            assert len(apart) == len(cuts) + len(out.hidden) + len(out.debts), (op, out)
        return outs

    def rule(self, op: Op, ins: list[Value]) -> list[Value]:
        match op:
            case Leaf():
                rule = RULES.get(op.name)
                if rule is None or op.effectful:
                    raise Unknown(f"there is no rule for {op.name}")
                return rule(self, op, ins)
            case AxisIndex():
                return [index_along(op.axis)]
            case Split():
                return [split(op, ins[0])]
            case Join():
                return [join(self, op, ins[0])]
            case Collective():
                return [exchange(self, op, ins[0])]
            case Scan():
                return read_loop(self, op, ins)
            case While():
                return loop_while(self, op, ins)
            case Cond():
                return choose_branch(self, op, ins)
        raise Unknown(f"there is no rule for {type(op).__name__}")

    def apart(self, op: Leaf, ins: list[Value]) -> list[Value]:
        """Return the results as an unknown function of each device's own operands."""
        axes = sorted({axis for v in ins for axis in v.axes})
        ins = [with_hidden(v, axes) for v in ins]
        lead = hidden_sizes(axes)
        kids = [v.scaled for v in ins]
        # Not the name of the operation alone: the rules' terms have other parameters and laws.
        name = f"{op.name} on each device"
        params = (frozen(op.params), tuple(str(dtype_of(atom)) for atom in op.ins), lead)
        return [
            Value(
                *T.function(name, (*params, index), kids, (*lead, *var.shape)),
                tuple(map(uncut, var.shape)),
                tuple(axes),
            )
            for index, var in enumerate(op.outs)
        ]

    def opaque(self, op: Op, ins: list[Value], unknown: Unknown) -> list[Value]:
        """Return new symbols for the results, and record a `Mistake`."""
        results = []
        debtor = unknown.debtor or next((v for v in ins if v.owed), None)
        born = debtor.born if debtor else None
        owing = (a for a, v in zip(op.ins, ins, strict=False) if v is debtor)
        maker = next((self.makers.get(a) for a in owing if isinstance(a, Var)), None)
        sound = born is not None and id(born) in self.shares
        if isinstance(op, Collective) and op.name in EXCHANGES:  # the parts are only moved
            sound = False
        if isinstance(op, Join):  # without exchange, a part is not the whole
            sound = sound or not self.passed_on & unknown.debt
        for var in op.outs:
            axes = tuple(sorted(axis for axis in var.axes if axis.size > 1))
            shape = (*hidden_sizes(axes), *var.shape)
            coef, term = T.symbol("opaque", object(), shape=shape)
            self.mistakes[term] = Mistake(
                op,
                unknown.reason,
                tuple(sorted(unknown.debt)),
                born,
                self.count,
                extreme=any(kind != "sum" for v in ins for _, kind in v.owed),
                paid=debtor.scaled if debtor else None,
                made_of=tuple(v.term for v in ins),
                owed=tuple(v.debts for v in ins),
                maker=maker,
                sound=bool(unknown.debt) and sound,
            )
            results.append(Value(coef, term, tuple(map(uncut, var.shape)), axes))
        return results


def index_along(axis: Axis) -> Value:
    """Return a device's coordinate: one element of the whole `0, ..., n-1`."""
    if axis.size == 1:
        return whole(T.zero(()))
    return Value(*T.iota((axis.size,), 0), (), (axis,))


def literal(value: Any) -> Scaled:
    """Return a constant of the program; random keys by their key data."""
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        coef, data = T.constant(np.asarray(jax.random.key_data(value)))
        return 1, T.make("key", (coef, str(value.dtype)), ((1, data),), value.shape)
    # JAX's typed Python numbers have a dtype that NumPy does not see.
    return T.constant(np.asarray(value, getattr(value, "dtype", None)))

"""Rules for elementwise operations.

All operands are read with one cut. A share of a sum passes through linear operations; any other
operation on a share is the mistake that `prove` reports.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from .._mesh import Axis
from .._program import Leaf, primitives
from . import finite
from . import term as T
from .algebra import ANY, FIELD, MOVES, NARROW, RING, kind_of
from .align import align, spread
from .bits import dtype_of, few_bits, rounded, wraps
from .evaluate import FLOATING
from .masked import looked_up
from .notes import Notes
from .positions import as_positions
from .rules import frozen, rule
from .skipped import refuse_skipped, tests_nan
from .term import Scaled
from .value import NOTHING, Owed, Unknown, Value, owing


def debts_of(ins: list[Value]) -> frozenset[Axis]:
    """Return the axes over which any operand is owed."""
    return frozenset(axis for v in ins for axis in v.debts)


def share_words(axes: frozenset[Axis]) -> str:
    """Return the phrase for a share over these axes."""
    names = ", ".join(repr(axis.name) for axis in sorted(axes))
    return f"each device's own share over {names}"


def refuse_debts(name: str, ins: list[Value]) -> None:
    """Raise `Unknown` if an operand of a non-linear operation is owed."""
    # A value whose shares sum to zero is not zero on each device: a device's own mean minus the
    # mean of all is an example.
    debts = debts_of(ins)
    if debts:
        debtor = next(v for v in ins if v.owed)
        raise Unknown(f"{name} is not linear, so it cannot come before the sum", debts, debtor)


def only_sums(name: str, v: Value) -> None:
    """Raise `Unknown` if a maximum or minimum is owed; a sum of shares may be taken."""
    if any(kind != "sum" for _, kind in v.owed):
        raise Unknown(f"{name} of a maximum or minimum that is still owed", v.debts)


def combined(w: Notes, ins: list[Value]) -> tuple[list[Scaled], Value]:
    """Return operands as terms of one shape, and a value with the reading of the result."""
    operands = align(ins, w.known)
    terms, dims, hidden, _ = spread(operands)
    return terms, Value(0, T.ONE, dims, hidden)


def settle(w: Notes, op: Leaf, ins: list[Value]) -> tuple[list[Value], Any]:
    """Read all summands as owed over the same axes; whole values count once for each device.

    Also return the operation since which they are owed.
    """
    debts = debts_of(ins)
    if not debts:
        return ins, None
    if any(kind != "sum" for v in ins for _, kind in v.owed):
        raise Unknown("a maximum or minimum that is still owed is added to", debts)
    out = []
    for v in ins:
        for axis in sorted(debts - v.debts):
            if v.coef:
                w.note("counted", op, axis, v)
            v = owing(v, axis)
        out.append(v)
    return out, next(v.born for v in ins if v.owed)


@rule("add", "add_any", "sub", needs=RING)
def sums(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Add operands that are cut alike; one share makes all of them shares."""
    ins, born = settle(w, op, ins)
    terms, like = combined(w, ins)
    if op.name == "sub":
        terms[1] = (-terms[1][0], terms[1][1])
    # What cancels is 0 only if it is not NaN: `x - x` of a NaN is NaN.
    add = finite.add if jnp.issubdtype(op.outs[0].dtype, jnp.inexact) else T.add
    out = like.having(add(terms, terms[0][1].shape), owed=ins[0].owed, born=born)
    return [rounded(as_positions(out), op.outs[0].dtype)]


def not_dropped(op: Leaf, ins: list[Value]) -> list[Value]:
    """Return the factors of a product; next to one that may be NaN, zero becomes `NOTHING`."""
    if not jnp.issubdtype(op.outs[0].dtype, jnp.inexact) or not any(v.zero for v in ins):
        return ins
    if not any(not v.zero and finite.may_be_nan(v.term) for v in ins):
        return ins
    return [v.having(T.full((1, T.NOTHING), v.term.shape)) if v.zero else v for v in ins]


def check_product(name: str, ins: list[Value]) -> tuple[Owed, Any]:
    """Return what a product is owed over, and since which operation.

    Factors may not differ over axes that another factor is owed over.
    """
    if any(v.zero for v in ins):
        return NOTHING, None
    for i, v in enumerate(ins):
        only_sums(name, v)
        for factor in (*ins[:i], *ins[i + 1 :]):
            if v.owed and T.not_finite(factor.term):
                raise Unknown(f"{name} of it with infinity or NaN is not linear", v.debts, v)
            clash = v.debts & (factor.axes | factor.debts)
            if clash:
                noun = PICKED if _is_picked(factor) else "a value"
                raise Unknown(
                    f"{name} of it with {noun} that differs over the same axis cannot come before "
                    "the sum",
                    clash,
                )
    return NOTHING.union(*(v.owed for v in ins)), next((v.born for v in ins if v.owed), None)


PICKED = "a single number"
"""The phrase in messages for a single number that each device has for itself, such as `x[0]`."""


def _is_picked(v: Value) -> bool:
    return math.prod(v.local) == 1 and not v.debts


@rule("mul", needs=RING)
def products(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Multiply operands that are cut alike; one of them may be a share."""
    ins = not_dropped(op, ins)
    owed, born = check_product("the product", ins)
    terms, like = combined(w, ins)
    out = like.having(T.multiply(terms, terms[0][1].shape), owed=owed, born=born)
    out = rounded(out, op.outs[0].dtype)
    w.scaled(op, ins, out)
    return [out]


@rule("div", needs=FIELD)
def quotients(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Divide; the numerator may be a share. Integer division rounds, so shares are not allowed."""
    refuse_debts("division by a share", ins[1:])
    if not jnp.issubdtype(op.outs[0].dtype, jnp.inexact):
        return pointwise(w, op, ins)
    if ins[0].zero and not (T.is_one(ins[1].term) and ins[1].coef):
        # 0 / d is NaN where d is 0, which coordinates and booleans may be.
        ins = [ins[0].having(T.full((1, T.NOTHING), ins[0].term.shape)), ins[1]]
    if ins[0].owed and ins[1].zero:
        raise Unknown("a share is divided by 0, which is not linear", ins[0].debts)
    owed, born = check_product("the quotient", ins)
    terms, like = combined(w, ins)
    quotient = T.multiply([terms[0], T.reciprocal(terms[1])], terms[0][1].shape)
    out = like.having(quotient, owed=owed, born=born)
    w.scaled(op, ins, out)
    return [out]


@rule("neg", needs=RING)
def negatives(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Negate; cut and share are kept, and an owed maximum becomes a minimum."""
    if few_bits(dtype_of(op.ins[0])) and any(kind != "sum" for _, kind in ins[0].owed):
        raise Unknown("the negative of a maximum that is still owed may wrap around")
    negated = {"sum": "sum", "max": "min", "min": "max"}
    owed = frozenset((axis, negated[kind]) for axis, kind in ins[0].owed)
    return [ins[0].having((-ins[0].coef, ins[0].term), owed=owed)]


@rule("copy", "reduce_precision", "optimization_barrier", "stop_gradient", needs=MOVES)
def unchanged(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Return the value itself: rounding is not modelled."""
    return list(ins)


@rule("convert_element_type", needs=MOVES)
def conversions(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Convert; the value is unchanged unless this truncates, wraps around or tests for zero."""
    (v,) = ins
    new, old = op.params["new_dtype"], dtype_of(op.ins[0])
    loses = jnp.issubdtype(old, jnp.inexact) and not jnp.issubdtype(new, jnp.inexact)
    loses = loses or (
        jnp.issubdtype(old, jnp.complexfloating) and jnp.issubdtype(new, jnp.floating)
    )
    if new == jnp.bool_ and old != jnp.bool_:
        return by_element(w, op, ins, "nonzero")
    if loses:
        return by_element(w, op, ins, "truncate")
    if wraps(v, old, new):
        if v.owed:
            raise Unknown(f"shares of dtype {old} may wrap around as they become {new}")
        return by_element(w, op, ins, "wrap")
    return [rounded(v, new)]


@rule("integer_pow", "square", needs=RING)
def powers(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Raise to an integer power."""
    (v,) = ins
    exponent = op.params.get("y", 2)
    if exponent == 1:
        return [v]
    refuse_debts("the square" if op.name == "square" else "a power", ins)
    return [v.having(T.power(v.scaled, exponent))]


@rule("select_n", needs=MOVES)
def selections(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Choose by element; linear in the cases, which may be shares."""
    which, *cases = ins
    refuse_debts("a choice by a share", [which])
    debts = debts_of(cases)
    cases, born = settle(w, op, cases)
    if which.axes & debts:
        noun = f"a choice by {PICKED}" if _is_picked(which) else "a choice"
        raise Unknown(f"{noun} that differs over the same axis as {share_words(debts)}", debts)
    terms, like = combined(w, [which, *cases])
    out = like.having(choose(terms[0], terms[1:]), owed=cases[0].owed, born=born)
    out = looked_up(out)
    return [out.having(out.scaled, born=op) if out.owed and out.born is None else out]


def choose(which: Scaled, cases: list[Scaled]) -> Scaled:
    """Return the term of a choice, with a common coefficient in front."""
    shape = which[1].shape
    if all(case == cases[0] for case in cases):
        return cases[0]
    if T.is_one(which[1]) and len(cases) > int(which[0]) >= 0:
        return cases[int(which[0])]
    lead = next((c for c, _ in cases if c), 1)
    result = T.elementwise("select", (), [which, *((T.over(c, lead), t) for c, t in cases)], shape)
    return T.tidy(lead * result[0]), result[1]


SIGNS = {
    "eq": "zero",
    "lt": "negative",
    "gt": "positive",
    "le": "nonpositive",
    "ge": "nonnegative",
}
"""For each comparison, the predicate of a difference that it equals."""


@rule("eq", "ne", "lt", "gt", "le", "ge", needs=ANY)
def comparisons(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Compare, by the sign of a difference."""
    refuse_debts("a comparison", ins)
    terms, like = combined(w, ins)
    shape, name = terms[0][1].shape, op.name
    dtype = dtype_of(op.ins[0])
    if not jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.unsignedinteger):
        return [like.having(T.elementwise(name, (), terms, shape))]
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    if inexact:
        asks_nan = terms[0] == terms[1] or any(tests_nan(t) for _, t in terms if w.skipping)
        refuse_skipped(w, name, (t for _, t in terms), asks_nan)
        if all(finite.may_be_nan(t) for _, t in terms):
            return [like.having(_as_given(name, terms))]
    (a, s), (b, t) = terms
    gap = as_positions(like.having(T.add([(a, s), (-b, t)], shape)))
    coef, shape = gap.coef, gap.term.shape
    if coef < 0:
        name = primitives.of(name).mirror
    sign, params = SIGNS.get(name, name), FLOATING if inexact else ()
    return [gap.having(T.elementwise(sign, params, [(1 if coef else 0, gap.term)], shape))]


def _as_given(name: str, terms: list[Scaled]) -> Scaled:
    """Return a comparison of data that may be infinite or NaN, for which no difference is formed.

    `x != x` is true where data is NaN.
    """
    (a, s), (b, t) = terms
    shape = s.shape
    if terms[0] == terms[1] and name in ("eq", "ne"):
        nan = T.elementwise("is_nan", (), [(1, t)], shape)
        return nan if name == "ne" else T.add([T.full((1, T.ONE), shape), (-nan[0], nan[1])], shape)
    if t.number < s.number:
        (a, s), (b, t), name = (b, t), (a, s), primitives.of(name).mirror
    if a < 0:
        name = primitives.of(name).mirror
    return T.elementwise(name, FLOATING, [(1, s), (T.over(b, a), t)], shape)


@rule("real", "imag", "conj", needs=RING)
def parts(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Return a part or the conjugate of a complex number; linear, so shares stay shares."""
    (v,) = ins
    only_sums(op.name, v)
    params = frozen({k: v for k, v in op.params.items() if k != "input_dtype"})
    coef, out = T.elementwise(op.name, params, [(1, v.term)], v.term.shape)
    return [v.having((T.tidy(v.coef * coef), out))]


@rule("complex", needs=RING)
def put_together(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Combine real and imaginary part; if one is a share, both are read as shares."""
    ins, born = settle(w, op, ins)
    terms, like = combined(w, ins)
    made = T.elementwise(op.name, (), terms, terms[0][1].shape)
    return [like.having(made, owed=ins[0].owed, born=born)]


@rule(*(primitives.POINTWISE - {"in_range"}), needs=ANY, default=True)
def pointwise(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Apply any other elementwise function to operands that are cut alike and no shares."""
    return by_element(w, op, ins, op.name)


def by_element(w: Notes, op: Leaf, ins: list[Value], name: str) -> list[Value]:
    """Apply the elementwise function `name`."""
    refuse_debts(name, ins)
    if name in ("is_finite", "nonzero"):
        refuse_skipped(w, name, (v.term for v in ins), name == "is_finite")
    terms, like = combined(w, ins)
    row = T.of(name)
    if row.commutes:
        terms = sorted(terms, key=lambda term: (term[1].number, term[0]))
        if terms[0] == terms[1] and row.idempotent:
            return [like.having(terms[0])]
    if name == "sign" and terms[0][0]:
        ((coef, t),) = terms
        out = T.elementwise(name, (), [(1, t)], t.shape)
        return [like.having((out[0] if coef > 0 else -out[0], out[1]))]
    settings = {k: v for k, v in op.params.items() if k not in ("accuracy", "sharding")}
    dtype = dtype_of(op.ins[0])
    exact = row.selects or row.bounded or row.truth
    if row.bits or (kind_of(dtype) == NARROW and not exact):
        # Conversions leave the term unchanged, so a result that wraps around has to name its dtype.
        settings["operand"] = str(dtype)
    if row.fixed_dtype:
        settings["result"] = str(op.outs[0].dtype)
    params = frozen(settings)
    if len(op.outs) == 1:
        return [like.having(T.elementwise(name, params, terms, terms[0][1].shape))]
    return [
        like.having(T.elementwise(name, (params, index), terms, terms[0][1].shape))
        for index in range(len(op.outs))
    ]

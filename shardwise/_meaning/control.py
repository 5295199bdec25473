"""Rules for loops and branches: symbols for carried values, readings to a fixed point.

The body of a loop is walked with a symbol for each carried value. The symbols are numbered by
depth, so that two equal loops are one term. A carried value keeps one reading (cut, debts) for all
iterations; the walk begins with the reading of the initial carry and repeats until no reading
changes.
"""

from __future__ import annotations

from fractions import Fraction

from .._program import Body, Cond, Scan, While
from . import term as T
from .align import align, spread
from .elementwise import choose
from .homogeneous import degree, lead
from .independent import all_at_once
from .notes import Notes
from .term import Coef, Scaled, Shape, Term
from .value import (
    Dims,
    Owed,
    Unknown,
    Value,
    narrowed,
    owing,
    uncut,
    whole_along,
    with_hidden,
)

ROUNDS = 8


def symbol_like(v: Value, *name: object) -> Value:
    """Return a symbol with the reading of a value."""
    return v.having(T.symbol(*name, shape=v.term.shape))


def meet_readings(w: Notes, a: Value, b: Value) -> tuple[Value, Value]:
    """Return two values of the same local shape in one reading."""
    for axis in sorted(a.debts | b.debts):
        kinds = {kind for v in (a, b) for owed_axis, kind in v.owed if owed_axis == axis}
        if kinds != {"sum"}:
            if (axis, *kinds) in a.owed and (axis, *kinds) in b.owed:
                continue
            raise Unknown("a maximum or minimum that is still owed is carried", a.debts | b.debts)
        a, b = owing(a, axis), owing(b, axis)
    a, b = align([a, b], w.known)
    return a, b


def loop(w: Notes, op: Scan, ins: list[Value]) -> list[Value]:
    """Return the results of a loop of known length."""
    if not op.length and len(op.outs) == op.carry:
        return ins[op.consts : op.consts + op.carry]
    at_once = all_at_once(w, op, ins)
    if at_once is not None:
        return at_once
    consts, carry, xs = _parts(ins, op.consts, op.carry)
    xs = [_scanned(x) for x in xs]
    w.depth += 1
    try:
        carry, symbolic, outs = _fixed(w, op.body, consts, carry, xs, op.carry)
    finally:
        w.depth -= 1
    carried, stacked = outs[: op.carry], outs[op.carry :]
    symbols = [v.term for v in symbolic]
    starts = [v.scaled for v in carry]
    coef, scaled = lead(starts, symbols, [v.scaled for v in carried])
    powers = [degree(v.scaled, scaled) for v in outs]
    if not op.length or any(power is None for power in powers):
        coef, scaled = 1, frozenset()
    factors = [T.tidy(Fraction(coef) ** (power or 0)) for power in powers]
    base = (
        tuple(v.scaled for v in carried),
        tuple(
            (T.over(c, coef) if symbol in scaled else c, t)
            for (c, t), symbol in zip(starts, symbols, strict=True)
        ),
        tuple(v.scaled for v in xs),
        op.length,
        op.reverse,
        w.depth + 1,
        tuple(len(v.hidden) for v in xs),
    )
    results = []
    for i, (start, symbol, out) in enumerate(zip(carry, symbolic, carried, strict=False)):
        if out.scaled == symbol.scaled:
            results.append(start)
        elif not out.coef and op.length:
            results.append(out)
        else:
            results.append(out.having(_looped(i, base, out.term.shape, factors[i])))
    lead_of = [len(v.hidden) for v in stacked]
    for j, (v, scan_dim) in enumerate(zip(stacked, lead_of, strict=True)):
        shape = (*v.term.shape[:scan_dim], op.length, *v.term.shape[scan_dim:])
        dims = (uncut(op.length), *v.dims)
        if not v.coef:
            result = T.zero(shape)
        elif not free_in(v.term, w.depth + 1):
            spots = [d for d in range(len(shape)) if d != scan_dim]
            result = T.bcast(v.scaled, shape, spots)
        else:
            step_outs = (*base[0], (1, v.term))
            factor = T.tidy(factors[op.carry + j] * v.coef)
            result = _looped((op.carry, scan_dim), (step_outs, *base[1:]), shape, factor)
        results.append(v.having(result, dims=dims))
    return results


def _parts(
    ins: list[Value], first: int, second: int
) -> tuple[list[Value], list[Value], list[Value]]:
    return ins[:first], ins[first : first + second], ins[first + second :]


def _scanned(x: Value) -> Value:
    """Prepare an input to scan over: each device scans over its own part of the first dimension."""
    return whole_along(narrowed(x, 0), [0])


def _fixed(
    w: Notes, body: Body, consts: list[Value], carry: list[Value], xs: list[Value], count: int
) -> tuple[list[Value], list[Value], list[Value]]:
    """Walk the body until the readings of the carried values no longer change."""
    depth = w.depth
    slices = []
    for i, x in enumerate(xs):
        lead = len(x.hidden)
        shape = (*x.term.shape[:lead], *x.term.shape[lead + 1 :])
        if lead in T.uniform_dims(x.term):
            slices.append(x.having((x.coef, T.strip(x.term, {lead})), dims=x.dims[1:]))
        else:
            symbol = T.symbol("step", depth, i, shape=shape)
            slices.append(x.having((x.coef, symbol[1]), dims=x.dims[1:]))
    zeros = {i for i, v in enumerate(carry) if v.zero}
    for _ in range(ROUNDS):
        symbolic = [
            v if i in zeros else symbol_like(v, "carry", depth, i) for i, v in enumerate(carry)
        ]
        outs = w.turn(body, [*consts, *symbolic, *slices], symbolic)
        # An initial zero may only be treated as zero if an iteration that finds zeros leaves zeros.
        grown = {i for i in zeros if not outs[i].zero}
        if grown:
            zeros -= grown
            continue
        new = [meet_readings(w, v, out) for v, out in zip(carry, outs, strict=False)]
        if all(_reading(v) == _reading(grown) for v, (grown, _) in zip(carry, new, strict=True)):
            return carry, symbolic, [*(out for _, out in new), *outs[count:]]
        carry = [_since(grown, out) for grown, out in new]
    raise Unknown("a loop that carries a value which is laid out anew at every step")


def _since(start: Value, out: Value) -> Value:
    """Return an initial carry that is owed, with `born` set to that of the iteration's result."""
    owed = start.owed and start.born is None
    return start.having(start.scaled, born=out.born) if owed else start


def _reading(v: Value) -> tuple[Dims, tuple, Owed]:
    return v.dims, v.hidden, v.owed


def free_in(t: Term, depth: int, seen: dict[Term, bool] | None = None) -> bool:
    """Return whether a term has symbols of the loop at this depth."""
    free: dict[Term, bool] = {} if seen is None else seen
    stack = [t]
    while stack:
        top = stack[-1]
        if top in free:
            stack.pop()
            continue
        if top.op == "symbol" and top.params[0] in ("carry", "step"):
            free[top] = top.params[1] == depth
            stack.pop()
            continue
        open_kids = [kid for _, kid in top.kids if kid not in free]
        if open_kids:
            stack += open_kids
            continue
        free[top] = any(free[kid] for _, kid in top.kids)
        stack.pop()
    return free[t]


def _looped(index: object, base: tuple, shape: Shape, coef: Coef) -> Scaled:
    # Without depth and leads as parameters, two loops that scan over different dimensions of one
    # array, or bind different symbols, would be the same term.
    outs, carry, xs, *settings = base
    kids = (*outs, *carry, *xs)
    result = T.function("loop", (index, len(outs), len(carry), *settings), kids, shape)
    return T.tidy(coef * result[0]), result[1]


def result_of_turn(loop: Term) -> Scaled:
    """Return what one iteration of a loop computes for one of its results."""
    index, outs, *_ = loop.params
    return loop.kids[index if isinstance(index, int) else outs - 1]


def loop_while(w: Notes, op: While, ins: list[Value]) -> list[Value]:
    """Return the results of a while loop, whose condition must not differ between devices."""
    first, second = op.cond_consts, op.body_consts
    cond_consts, body_consts, carry = _parts(ins, first, second)
    w.depth += 1
    try:
        carry, symbolic, outs = _fixed(w, op.body, body_consts, carry, [], len(carry))
        (decision,) = w.turn(op.cond, [*cond_consts, *symbolic], ())
    finally:
        w.depth -= 1
    if not decision.plain:
        raise Unknown("a loop whose condition differs between devices", decision.debts)
    kids = (decision.scaled, *(v.scaled for v in outs), *(v.scaled for v in carry))
    return [
        start
        if out.scaled == symbol.scaled
        else out.having(T.function("while", (i, len(outs), w.depth + 1), kids, out.term.shape))
        for i, (start, symbol, out) in enumerate(zip(carry, symbolic, outs, strict=True))
    ]


def choose_branch(w: Notes, op: Cond, ins: list[Value]) -> list[Value]:
    """Return the results of a `cond`: a choice between those of the branches."""
    index, *operands = ins
    if index.debts:
        raise Unknown("a branch is chosen by each device's own share", index.debts)
    if T.is_one(index.term) and not index.hidden:
        chosen = min(max(int(index.coef), 0), len(op.branches) - 1)
        return w.run(op.branches[chosen], operands)
    rows = [w.run(branch, operands) for branch in op.branches]
    return [_either(w, index, list(column)) for column in zip(*rows, strict=True)]


def chosen(w: Notes, index: Value, cases: list[Value]) -> Value:
    """Return the result of one of several branches."""
    if T.is_one(index.term) and not index.hidden and not index.debts:
        return cases[min(max(int(index.coef), 0), len(cases) - 1)]
    if index.debts:
        raise Unknown("a branch is chosen by each device's own share", index.debts)
    return _either(w, index, cases)


def _either(w: Notes, index: Value, cases: list[Value]) -> Value:
    first = cases[0]
    for _ in range(2):
        for i in range(1, len(cases)):
            first, cases[i] = meet_readings(w, first, cases[i])
    cases[0] = first
    if first.debts & index.axes:
        raise Unknown(
            "a branch differs over the axis that its result is still owed over", first.debts
        )
    which, *cases = align([index, *cases], w.known) if first.dims else _scalars(index, cases)
    terms, dims, hidden, _ = spread([which, *cases])
    return Value(*choose(terms[0], terms[1:]), dims, hidden, cases[0].owed, cases[0].born)


def _scalars(index: Value, cases: list[Value]) -> list[Value]:
    hidden = sorted({axis for v in (index, *cases) for axis in v.hidden})
    return [with_hidden(v, hidden) for v in (index, *cases)]

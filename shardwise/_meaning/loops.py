"""Rules for loops: a loop is read by the first of several strategies that applies.

`all_at_once` reads a loop with independent iterations as one more axis (`independent`).
`by_symbols` walks the body with a symbol for each carried value. The symbols are numbered by depth,
so that two equal loops are one term. A carried value keeps one reading (cut, debts) for all
iterations; the walk begins with the reading of the initial carry and repeats until no reading
changes. A walk that keeps devices apart unrolls loops instead (`devices`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .._program import Body, Scan, While
from . import term as T
from .branches import meet_readings
from .homogeneous import hoisted
from .independent import all_at_once, dropped
from .notes import Loop, Notes, Strategy
from .term import Coef, Scaled, Shape, Term
from .value import Unknown, Value, narrowed, thickened, uncut, whole_along

ROUNDS = 8
"""The number of times a body is walked for the readings of carried values to settle."""


def read_loop(w: Notes, op: Scan, ins: Sequence[Value]) -> list[Value]:
    """Return the results of a loop of known length."""
    loop = Loop.of(op, ins)
    results = (strategy(w, loop) for strategy in w.strategies)
    return next(outs for outs in results if outs is not None)


def no_iterations(w: Notes, loop: Loop) -> list[Value] | None:
    """Return the carry of a loop without iterations that stacks nothing."""
    return loop.carry if not loop.op.length and len(loop.op.outs) == loop.op.carry else None


def one_iteration(w: Notes, loop: Loop) -> list[Value] | None:
    """Return the results of a loop of one iteration: those of its body."""
    if loop.op.length != 1:
        return None
    parts = [dropped(w, x) for x in loop.xs]
    outs = w.run(loop.op.body, [*loop.consts, *loop.carry, *parts])
    carried = loop.op.carry
    return [*outs[:carried], *(thickened(v, 0) for v in outs[carried:])]


def by_symbols(w: Notes, loop: Loop) -> list[Value]:
    """Return terms that stand for a loop, with one iteration on symbols as operands."""
    op = loop.op
    xs = [whole_along(narrowed(x, 0), [0]) for x in loop.xs]
    w.depth += 1
    try:
        carry, symbolic, outs = _fixed(w, op.body, loop.consts, loop.carry, xs, op.carry)
    finally:
        w.depth -= 1
    carried, stacked = outs[: op.carry], outs[op.carry :]
    starts, factors = hoisted(
        [v.scaled for v in carry], [v.term for v in symbolic], [v.scaled for v in outs], op.length
    )
    base = (
        tuple(v.scaled for v in carried),
        tuple(starts),
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
    for v, factor in zip(stacked, factors[op.carry :], strict=True):
        lead = len(v.hidden)
        shape = (*v.term.shape[:lead], op.length, *v.term.shape[lead:])
        if not v.coef:
            result = T.zero(shape)
        elif not free_in(v.term, w.depth + 1):
            result = T.bcast(v.scaled, shape, [d for d in range(len(shape)) if d != lead])
        else:
            step_outs = (*base[0], (1, v.term))
            index = op.carry, lead
            result = _looped(index, (step_outs, *base[1:]), shape, T.tidy(factor * v.coef))
        results.append(v.having(result, dims=(uncut(op.length), *v.dims)))
    return results


STRATEGIES: tuple[Strategy, ...] = (no_iterations, one_iteration, all_at_once, by_symbols)
"""The ways to read a loop, in the order in which they are tried."""


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
            v if i in zeros else v.having(T.symbol("carry", depth, i, shape=v.term.shape))
            for i, v in enumerate(carry)
        ]
        outs = w.iteration(body, [*consts, *symbolic, *slices], symbolic)
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


def _reading(v: Value) -> tuple:
    return v.dims, v.hidden, v.owed


def free_in(t: Term, depth: int, seen: dict[Term, bool] | None = None) -> bool:
    """Return whether a term has symbols of the loop at this depth."""
    free: dict[Term, bool] = {} if seen is None else seen

    def is_free(t: Term) -> bool:
        if t.op == "symbol":
            return t.params[0] in ("carry", "step") and t.params[1] == depth
        return any(free[kid] for _, kid in t.kids)

    return T.bottom_up(t, free, is_free)


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
    first, second = op.cond_consts, op.cond_consts + op.body_consts
    cond_consts, body_consts, carry = ins[:first], ins[first:second], ins[second:]
    w.depth += 1
    try:
        carry, symbolic, outs = _fixed(w, op.body, body_consts, carry, [], len(carry))
        (decision,) = w.iteration(op.cond, [*cond_consts, *symbolic], ())
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

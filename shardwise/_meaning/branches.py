"""Rules for branches: a choice between the results of all of them."""

from __future__ import annotations

from .._program import Cond
from . import term as T
from .align import align, spread
from .elementwise import choose
from .notes import Notes
from .value import Unknown, Value, owing


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


def choose_branch(w: Notes, op: Cond, ins: list[Value]) -> list[Value]:
    """Return the results of a `cond`: a choice between those of the branches."""
    index, *operands = ins
    number = _known(index, len(op.branches))
    if number is not None:
        return w.run(op.branches[number], operands)
    rows = [w.run(branch, operands) for branch in op.branches]
    return [_either(w, index, list(column)) for column in zip(*rows, strict=True)]


def chosen(w: Notes, index: Value, cases: list[Value]) -> Value:
    """Return the result of one of several branches."""
    number = _known(index, len(cases))
    return _either(w, index, cases) if number is None else cases[number]


def _known(index: Value, count: int) -> int | None:
    """Return the number of the branch that is chosen, if it is the same for all inputs."""
    if index.debts:
        raise Unknown("a branch is chosen by each device's own share", index.debts)
    known = T.is_one(index.term) and not index.hidden
    return min(max(int(index.coef), 0), count - 1) if known else None


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
    which, *cases = align([index, *cases], w.known)
    terms, dims, hidden, _ = spread([which, *cases])
    return Value(*choose(terms[0], terms[1:]), dims, hidden, cases[0].owed, cases[0].born)

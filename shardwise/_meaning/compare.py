"""Comparison of two meanings: whether they are equal, else where they differ.

A result is correct when it has the same term and the same coefficient as in the reference, and
nothing is owed. Otherwise both terms are traversed together, from the results down, to the places
where they differ: a common term with another coefficient ("8 times the gradient"), a share to which
a non-linear operation was applied, or a term that no rule relates to the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from .._mesh import Axis
from .._program import Leaf, Op, Var, primitives
from . import term as T
from .loops import result_of_turn
from .notes import Mistake, Notes, TermEvent
from .term import LINEAR, Coef, Scaled, Term
from .value import Value

DEEP = 20_000
"""The number of pairs of terms to traverse before two terms count as different."""

_KEEPS = primitives.names(
    lambda p: p.moves in ("reorder", "repeat") or (p.pointwise and p.selects)
) | {"convert_element_type", "is_finite"}
_SCALES = primitives.names(lambda p: p.pointwise and p.linear in ("each", "first")) | {"neg"}
"""Operations allowed on a maximum, and on the difference from it, before `exp` is applied."""


@dataclasses.dataclass(frozen=True, eq=False)
class Gap:
    """One place where a result differs from the reference."""

    kind: str
    """`times` (a factor), `mistake` (a misused share), `first`/`moved` (`out_specs`) or `other`."""
    term: Term
    ratio: Coef | None = None
    coef: Coef = 1
    """The coefficient of the term in the result."""
    mistake: Mistake | None = None
    mistakes: tuple[Mistake, ...] = ()
    """All such mistakes, in program order."""
    steps: tuple[TermEvent, ...] = ()
    stray: Op | None = None
    """The first operation that no rule relates; for `first` and `moved`, what makes the result."""
    filled: tuple[int, int] | None = None
    """The number of rows of an argument, and the number it is padded to so that it divides."""
    long: bool = False
    """Whether the two were too large to compare."""
    axes: tuple[Axis, ...] = ()
    whole: bool = True
    """For `times`: whether the factor is one of the result itself, not of a term inside it."""
    sure: bool = True
    """Whether the factor certainly shows in the result: it may be lost on the way."""
    linear: bool = False
    """Whether the result is certainly off by the factor, unless the scaled term is zero."""
    asked: bool = False
    """Whether the gap lies inside `is_nan`, whose result a factor does not change."""

    @property
    def ops(self) -> list[Op]:
        """The operations that the gap names."""
        named = [*(step.op for step in self.steps), self.stray]
        return [op for op in named if op is not None]


def equal(a: Value, b: Value) -> bool:
    """Return whether two results are the same for all inputs."""
    return a.scaled == b.scaled and a.plain and b.plain


def gaps(w: Notes, want: Value, got: Value) -> list[Gap]:
    """Return the gaps between a result and the reference, in program order."""
    if equal(want, got):
        return []
    T.in_time()
    mistakes = sorted(mistakes_in(w, got.term), key=lambda m: m.order)
    sound = tuple(_first_use(w, mistake) for mistake in mistakes if mistake.sound)
    if sound or (mistakes and not mistakes[0].axes):
        first = next(iter(sound), mistakes[0])
        return [Gap("mistake", got.term, _ratio(want, first.paid), mistake=first, mistakes=sound)]
    if mistakes:
        stray = _first_stray(w, [got.term, *(t for mistake in mistakes for t in mistake.made_of)])
        return [Gap("other", got.term, stray=stray or mistakes[0].op)]
    differences = list(_parting(want.scaled, got.scaled))
    differences = [gap for gap in differences if not gap.asked] or differences
    if all(gap.kind == "times" for gap in differences):
        terms = {gap.term for gap in differences}
        steps = {t: steps_of(w, t, terms) for t in terms}
        return [
            dataclasses.replace(
                gap,
                steps=(*_before(w, steps[gap.term], gap.ratio), *steps[gap.term]),
                whole=gap.term is got.term,
            )
            for gap in differences
        ]
    if got.term in w.joined:
        kind, op, axes = w.joined[got.term]
        return [Gap(kind, got.term, stray=op, axes=axes)]
    others = [gap.term for gap in differences if gap.kind == "other"]
    stray = _first_stray(w, others) or _first_stray(w, [got.term])
    return [Gap("other", got.term, stray=stray, filled=_filled_up(w, got.term))]


def _first_use(w: Notes, mistake: Mistake) -> Mistake:
    """Return the mistake with its `exponent`, and `used` if the forward pass has it already."""
    mistake = dataclasses.replace(mistake, exponent=_exponent(w, mistake))
    if mistake.op.backward and mistake.born is not None:
        forward = (m for m in w.mistakes.values() if m.born is mistake.born and not m.op.backward)
        first = min(forward, key=lambda m: m.order, default=None)
        if first is not None and first.axes and not first.returned:
            first = dataclasses.replace(first, exponent=mistake.exponent)
            return dataclasses.replace(mistake, used=first)
    return mistake


def _exponent(w: Notes, mistake: Mistake) -> bool:
    """Return whether the difference from a maximum or minimum is an argument of `exp`."""
    if not mistake.extreme or mistake.born is None:
        return False
    if mistake.born not in w.exponents:
        w.exponents[mistake.born] = _exponent_of(w, mistake.born)
    return w.exponents[mistake.born]


def _exponent_of(w: Notes, born: Op) -> bool:
    kept, differences = {*born.outs}, set[Var]()
    for out, op in w.makers.items():
        name = op.name if isinstance(op, Leaf) else ""
        operands = {atom for atom in op.ins if isinstance(atom, Var)}
        if operands & differences and name.startswith("exp"):
            return True
        differs = operands & kept and name in ("add", "sub")
        if differs or (operands & differences and name in _KEEPS | _SCALES):
            differences.add(out)
        elif operands & kept and name in _KEEPS:
            kept.add(out)
    return False


def _ratio(want: Value, paid: Scaled | None) -> Coef | None:
    """Return the ratio of the sum of the shares to the result, if it is a constant."""
    if not paid or paid[1] != want.term or not want.coef:
        return None
    return Fraction(paid[0]) / Fraction(want.coef)


def mistakes_in(w: Notes, t: Term) -> Iterator[Mistake]:
    """Yield the mistakes that a term depends on, and those that these depend on."""
    seen: set[Term] = set()
    open_ = [t] if w.mistakes else []
    while open_:
        for term in T.below(open_.pop(), seen):
            if term in w.mistakes:
                yield w.mistakes[term]
                open_ += w.mistakes[term].made_of


def _filled_up(w: Notes, t: Term) -> tuple[int, int] | None:
    """Return the rows of an argument and those it is padded to, where it is not on one device."""
    for term in T.below(t):
        if T.of(term.op).moves not in ("lookup", "pad", "join") or w.known(term):
            continue
        for _, kid in term.kids:
            is_argument = kid.op == "symbol" and kid.params[0] == "argument" and kid.shape
            if is_argument and kid.shape[1:] == term.shape[1:] and kid.shape[0] < term.shape[0]:
                return kid.shape[0], term.shape[0]
    return None


def _first_stray(w: Notes, terms: Iterable[Term]) -> Op | None:
    strays = [w.strays[term] for t in terms for term in T.below(t) if term in w.strays]
    return min(strays, key=lambda stray: stray[0])[1] if strays else None


@dataclasses.dataclass(frozen=True)
class _Way:
    """The operations between the results and a pair of terms inside them.

    A factor of the inner term may be lost on the way: in a loop, in an operation that ignores
    factors, or where two of them cancel, as in `log(2 * x) - log(2 * y)`.
    """

    shows: bool = True
    """Whether every operation on the way returns something else for a multiple."""
    bent: bool = False
    """Whether an operation on the way is not linear."""
    forked: bool = False
    """Whether the two terms differed in more than one operand."""
    asked: bool = False
    """Whether an operation on the way is `is_nan`."""

    @property
    def linear(self) -> bool:
        """Whether the result is linear in the inner term, and nothing else differs."""
        return not self.bent and not self.forked

    @property
    def sure(self) -> bool:
        """Whether a factor of the inner term shows in the result."""
        return self.shows and not (self.bent and self.forked)

    def through(self, op: str, differing: int) -> _Way:
        """Return the way extended by one operation."""
        linear = op in LINEAR or op in MIXES
        return _Way(
            self.shows and (linear or op in SHOWN),
            self.bent or not linear,
            self.forked or differing > 1,
            self.asked or op == "is_nan",
        )


def _parting(want: Scaled, got: Scaled) -> Iterator[Gap]:
    """Yield a gap for each pair of subterms at which two terms differ."""
    seen: set[tuple[Scaled, Scaled, _Way]] = set()
    stack = [(want, got, _Way())]
    while stack:
        (a, s), (b, t), path = pair = stack.pop()
        if pair in seen or (a, s) == (b, t):
            continue
        seen.add(pair)
        if s is t:
            ratio = T.over(b, a) if a else None
            yield Gap("times", t, ratio, b, sure=path.sure, linear=path.linear, asked=path.asked)
            continue
        below = _below((a, s), (b, t)) if len(seen) <= DEEP else None
        if below is None:
            yield Gap("other", t, asked=path.asked)
        else:
            differing = [(x, y) for x, y in below if x != y]
            further = path.through(t.op, len(differing))
            stack += [(x, y, further) for x, y in differing]


def _below(want: Scaled, got: Scaled) -> list[tuple[Scaled, Scaled]] | None:
    """Return the operands in which two terms may differ; None if they are built differently."""
    (a, s), (b, t) = want, got
    if (s.op, s.shape) != (t.op, t.shape) or s.op in FREE:
        return None
    if s.op == "sum":
        return _sums(want, got)
    if s.params == t.params and len(s.kids) == len(t.kids):
        if a == b:
            pairs = zip(s.kids, t.kids, strict=True)
            return _unordered(s, t) if T.of(s.op).commutes else list(pairs)
        if len(s.kids) == 1 and s.op in LINEAR:
            return [((a, s.kids[0][1]), (b, t.kids[0][1]))]
    return _products(want, got) if s.op == "product" else None


FREE = T.operations(lambda p: p.acts == "searches") | {"is_finite"}
"""Operations that may ignore a factor of their operands, so that it refutes nothing."""

MIXES = {"sum", "product", "dot", "conv", "concatenate", "scatter_add", "add_rows"}
"""Operations that are linear in each of several operands."""

SHOWN = T.operations(
    lambda p: (
        p.selects or (p.pointwise and not (p.linear or p.truth or p.bits or p.rounds or p.bounded))
    )
) | {"scatter"}
"""Operations that return something else for a multiple, at least for some numbers."""


def _unordered(s: Term, t: Term) -> list[tuple[Scaled, Scaled]]:
    """Return the operands that differ, paired by kind."""
    missing = [kid for kid in s.kids if kid not in t.kids]
    extra = [kid for kid in t.kids if kid not in s.kids]
    return (
        _paired(missing, extra)
        if len(missing) == len(extra)
        else [*zip(s.kids, t.kids, strict=True)]
    )


def _paired(left: list[Scaled], right: list[Scaled]) -> list[tuple[Scaled, Scaled]]:
    def kind(one: Scaled) -> tuple[Any, ...]:
        return one[1].op, one[1].shape, sorted(kid.op for _, kid in one[1].kids)

    return list(zip(sorted(left, key=kind), sorted(right, key=kind), strict=True))


def _sums(want: Scaled, got: Scaled) -> list[tuple[Scaled, Scaled]]:
    """Return the summands that differ, paired by term where possible, else by kind."""
    ours = {t: T.tidy(want[0] * c) for c, t in want[1].kids}
    theirs = {t: T.tidy(got[0] * c) for c, t in got[1].kids}
    pairs: list[tuple[Scaled, Scaled]] = [
        ((ours[t], t), (theirs[t], t)) for t in ours if t in theirs and ours[t] != theirs[t]
    ]
    missing = [(c, t) for t, c in ours.items() if t not in theirs]
    extra = [(c, t) for t, c in theirs.items() if t not in ours]
    if len(missing) == len(extra):
        return pairs + _paired(missing, extra)
    return [(want, (1, T.make("unlike", (), (got,), got[1].shape)))]


def _products(want: Scaled, got: Scaled) -> list[tuple[Scaled, Scaled]] | None:
    ours = dict(zip((t for _, t in want[1].kids), want[1].params, strict=True))
    theirs = dict(zip((t for _, t in got[1].kids), got[1].params, strict=True))
    missing = [t for t in ours if ours[t] != theirs.get(t)]
    extra = [t for t in theirs if theirs[t] != ours.get(t)]
    if len(missing) == len(extra) == 1 and ours[missing[0]] == theirs[extra[0]] == 1:
        return [((want[0], missing[0]), (got[0], extra[0]))]
    return None


def steps_of(w: Notes, t: Term, beside: Container[Term]) -> list[TermEvent]:
    """Return the recorded steps of a term, or of the nearest terms it is linear in.

    What was done to a sum was done to each summand. A step of a sum counts if all its summands are
    in `beside`, or if nothing else is known.
    """
    through = {*LINEAR, "sum", "loop"}
    options = through, {*through, "product"}, {*through, *MIXES}
    steps = next(filter(None, (_nearest(w, t, option) for option in options)), [])
    unknown = all(step.kind == "owes" for step in steps)
    for sum_, recorded in w.steps.items():
        summands = [kid for _, kid in sum_.kids] if sum_.op == "sum" else []
        if t in summands and (unknown or all(kid in beside for kid in summands)):
            steps += recorded
    return sorted(steps, key=lambda step: step.order)


def _nearest(w: Notes, t: Term, through: Container[str]) -> list[TermEvent]:
    """Return the recorded steps of a term, or of the nearest ones below `through` operations."""
    frontier = [t]
    for _ in range(12):
        steps = [step for term in frontier for step in w.steps.get(T.core(term), ())]
        if steps:
            return steps
        frontier = [kid for term in frontier if term.op in through for kid in _parts(term)]
    return []


def _parts(t: Term) -> Iterator[Term]:
    """Yield the operands of a term and its divisors; for a loop, the result of one iteration."""
    for _, kid in (result_of_turn(t),) if t.op == "loop" else t.kids:
        core = T.core(kid)
        yield core.kids[0][1] if core.op == "reciprocal" else kid


def _before(w: Notes, steps: Sequence[TermEvent], ratio: Coef | None) -> list[TermEvent]:
    """Return the steps of scalars that explain the factor of a gradient summed afterwards.

    `reduced` steps scale a loss by the same factor. A `seeded` step differentiates a sum over
    devices with checks off, so that its derivative is summed again.
    """
    last = max((step.order for step in steps if step.kind == "paid"), default=0)
    explaining = []
    coefs = w.reference.coefs if w.reference is not None else {}
    for term, recorded in w.steps.items():
        for step in recorded if not term.shape else ():
            if step.kind == "times" and step.op.backward:
                explaining.append(dataclasses.replace(step, kind="seeded"))
            elif step.kind in ("paid", "scaled") and not step.op.backward and step.order < last:
                times = {T.over(step.coef, coef) for coef in coefs.get(term, ()) if coef}
                if ratio in times and 1 not in times:
                    explaining.append(dataclasses.replace(step, kind="reduced"))
    return explaining

"""What a walk has seen so far: what the rules ask of it, and what the findings are worded from."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

from .._mesh import Axis
from .._program import Body, Join, Op, Var, Where
from . import term as T
from .term import Coef, Scaled, Shape, Term
from .value import Value


@dataclasses.dataclass(frozen=True, eq=False)
class Mistake:
    """An operation that could not be followed: mostly, something was done to a share of a sum."""

    op: Op
    reason: str
    axes: tuple[Axis, ...]
    born: Op | None
    order: int
    extreme: bool = False
    """Whether it is a maximum or minimum that is still owed."""
    exponent: bool = False
    """Whether an exponential is taken of what comes of it, as in a logsumexp."""
    paid: Scaled | None = None
    """What the sum of the shares would have been."""
    made_of: tuple[Term, ...] = ()
    """The terms of what the operation was given."""
    owed: tuple[frozenset[Axis], ...] = ()
    """Over which axes each of these is a share."""
    maker: Op | None = None
    """The operation that made the share as it is used here."""
    used: Mistake | None = None
    """Where the same shares are used in the forward pass, if this is in the backward one."""
    sound: bool = False
    """Whether the shares are known to be shares of what one device has.

    Any values that differ between devices can be read as shares of their sum, whatever that is.
    Where the reference has no such sum, nothing says that one was meant."""

    @property
    def returned(self) -> bool:
        """Whether a share is returned as a result."""
        return isinstance(self.op, Join) and bool(self.axes)


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """What happened to a term: `paid`, `times`, `owes`, `counted`, `blocks`, `scaled`.

    It is `scaled` where that is by another number than on one device. What happened on the way to
    a gradient is `reduced` or `seeded`.
    """

    kind: str
    op: Op
    axis: Axis | None
    order: int
    coef: Coef = 1
    """The coefficient of the term then."""


class Notes(abc.ABC):
    """One walk over one program, as the rules know it."""

    turn_by_turn = False
    """Whether loops are read one turn at a time, even where all could be taken at once."""

    def __init__(self, reference: Notes | None = None, outer: Notes | None = None):
        self.reference, self.outer = reference, outer
        self.seen: set[Term] = set()
        self.reshapes: dict[Term, set[Shape]] = {}
        self.mistakes: dict[Term, Mistake] = {}
        self.strays: dict[Term, tuple[int, Op]] = {}
        """Terms that the reference does not have, made from terms that it has."""
        self.steps: dict[Term, list[Step]] = {}
        self.shares: set[int] = set()
        """The operations, by id, that give shares of what the reference has."""
        self.passed_on: set[Axis] = set()
        """The axes along which parts went from device to device."""
        self.numbers: set[tuple[str, Where, Scaled]] = set()
        """The operations by which the reference multiplies and divides by numbers, and what by."""
        self.coefs: dict[Term, set[Coef]] = {}
        """The multiples of terms that the reference has as numbers by themselves."""
        self.joined: dict[Term, tuple[str, Op, tuple[Axis, ...]]] = {}
        """Results that were put together otherwise than they lie: the `first` part of several that
        differ, or `moved` to another dimension."""
        self.skipping: set[Term] = outer.skipping if outer is not None else set()
        """Maxima and minima over devices of floating-point numbers, in which NaN is skipped."""
        self.makers: dict[Var, Op] = {}
        self.exponents: dict[Op, bool] = {}
        """Maxima and minima: whether the difference from one goes into an exponential."""
        self.depth = 0
        self.count = 0

    def known(self, term: Term) -> bool:
        """Whether the reference program has a value with this term."""
        return self.reference is None or term in self.reference.seen

    def familiar(self, term: Term) -> bool:
        """Whether the reference has it, or has it spread over other sizes.

        A device that fills its own rows with a number has fewer of them than one device has; that
        is no place at which two programs part.
        """
        inner = term.kids[0][1] if term.op == "bcast" else term
        return self.known(term) or inner.op in ("one", "literal") or self.known(inner)

    def has(self, term: Term) -> bool:
        """Whether a value with this term came before, here or in the walk around this one."""
        return term in self.seen or (self.outer is not None and self.outer.has(term))

    def shapes_of(self, term: Term) -> set[Shape]:
        """The shapes into which the reference program reshapes a term."""
        return self.reference.reshapes.get(term, set()) if self.reference is not None else set()

    def counted(self, op: Op, axis: Axis, v: Value) -> None:
        """A whole value was added to a share: the sum over devices counts it once for each."""
        self.note("counted", op, axis, v)

    def note(self, kind: str, op: Op, axis: Axis | None, v: Value) -> None:
        """Remember what happened to a term, for the words of a finding."""
        if self.reference is not None:
            step = Step(kind, op, axis, self.count, v.coef)
            self.steps.setdefault(T.core(v.term), []).append(step)

    def scaled(self, op: Op, name: str, ins: Sequence[Value], out: Value) -> None:
        """Remember that something is multiplied or divided by a number that the devices change."""
        for by in ins:
            if T.is_one(by.term) and abs(by.coef) != 1:
                key = name, op.where, by.scaled
                if self.reference is None:
                    self.numbers.add(key)
                elif key not in self.reference.numbers:
                    self.note("scaled", op, None, out)

    @abc.abstractmethod
    def anew(self) -> Notes:
        """A walk from here on, of which nothing is kept unless it is taken over."""

    def take_over(self, other: Notes, but: Axis) -> None:
        """Keep what another walk has seen, but for what it says of an axis of its own."""
        self.count = other.count
        self.seen |= other.seen
        self.makers |= other.makers
        self.strays |= {t: found for t, found in other.strays.items() if t not in self.strays}
        self.joined |= other.joined
        self.numbers |= other.numbers
        for term, coefs in other.coefs.items():
            self.coefs.setdefault(term, set()).update(coefs)
        self.shares |= other.shares
        self.passed_on |= other.passed_on
        for term, shapes in other.reshapes.items():
            self.reshapes.setdefault(term, set()).update(shapes)
        for term, steps in other.steps.items():
            kept = [step for step in steps if step.axis != but]
            self.steps.setdefault(term, []).extend(kept)

    @abc.abstractmethod
    def run(self, body: Body, ins: Sequence[Value]) -> list[Value]:
        """The meanings of a body's results."""

    def turn(self, body: Body, ins: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        """The meanings of what one turn of a loop gives; `given` is what it carries."""
        return self.run(body, ins)

"""What a walk has recorded so far: for the rules, and for the messages of findings."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .._mesh import Axis
from .._program import Body, Join, Leaf, Op, Scan, Var, Where
from . import term as T
from .term import Coef, Scaled, Shape, Term
from .value import Value


@dataclasses.dataclass(frozen=True, eq=False)
class Mistake:
    """An operation that no rule covers: mostly a non-linear one applied to a share of a sum."""

    op: Op
    reason: str
    axes: tuple[Axis, ...]
    born: Op | None
    order: int
    extreme: bool = False
    """Whether a maximum or minimum is owed."""
    exponent: bool = False
    """Whether its difference from other values is an argument of `exp`, as in a logsumexp."""
    paid: Scaled | None = None
    """The term that the sum of the shares would have been."""
    made_of: tuple[Term, ...] = ()
    """The terms of the operands."""
    owed: tuple[frozenset[Axis], ...] = ()
    """The axes over which each operand is a share."""
    maker: Op | None = None
    """The operation whose result is the share that is an operand here."""
    used: Mistake | None = None
    """The use of the same shares in the forward pass, if this one is in the backward pass."""
    sound: bool = False
    """Whether the shares are known to add up to a value of the reference.

    Any values that differ between devices can be read as shares of their sum. Where the reference
    has no such sum, nothing shows that one was intended.
    """

    @property
    def returned(self) -> bool:
        """Whether a share is returned as a result."""
        return isinstance(self.op, Join) and bool(self.axes)


@dataclasses.dataclass(frozen=True, eq=False)
class TermEvent:
    """An event in the history of a term, of one of these kinds.

    `owes`: a sum becomes owed; `paid`: it is added up over devices. `times` and `blocks`: a `psum`
    of equal or different values. `counted`: a whole value is added to a share. `scaled`: the term
    is multiplied by another number than on one device. Such steps of scalars before a gradient are
    `reduced` or `seeded`.
    """

    kind: str
    op: Op
    axis: Axis | None
    order: int
    coef: Coef = 1
    """The coefficient of the term at that point."""


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop of known length, with the meanings of its operands."""

    op: Scan
    consts: list[Any]
    carry: list[Any]
    xs: list[Any]

    @classmethod
    def of(cls, op: Scan, ins: Sequence[Any]) -> Loop:
        """Divide the operands of a loop."""
        first, second = op.consts, op.consts + op.carry
        return cls(op, [*ins[:first]], [*ins[first:second]], [*ins[second:]])


Strategy = Callable[[Any, Loop], list[Any] | None]
"""A way to read a loop in a walk: its results, or None if another strategy has to."""


class Notes(abc.ABC):
    """The state of one walk over one program, as the rules use it."""

    strategies: Sequence[Strategy]
    """The ways to read a loop, in the order in which they are tried."""

    def __init__(self, reference: Notes | None = None, outer: Notes | None = None):
        self.reference, self.outer = reference, outer
        self.seen: set[Term] = set()
        self.reshapes: dict[Term, set[Shape]] = {}
        self.mistakes: dict[Term, Mistake] = {}
        self.strays: dict[Term, tuple[int, Op]] = {}
        """Terms that the reference does not have, computed from terms that it has."""
        self.steps: dict[Term, list[TermEvent]] = {}
        self.shares: set[int] = set()
        """The ids of the operations whose results are shares of terms of the reference."""
        self.passed_on: set[Axis] = set()
        """The axes along which parts were sent from device to device."""
        self.numbers: set[tuple[str, Where, Scaled]] = set()
        """The multiplications and divisions by numbers in the reference, with the numbers."""
        self.coefs: dict[Term, set[Coef]] = {}
        """For each term, the coefficients with which it is a scalar in the reference."""
        self.joined: dict[Term, tuple[str, Op, tuple[Axis, ...]]] = {}
        """Results whose `out_specs` do not match their sharding: the `first` of parts that differ,
        or `moved` to another dimension.
        """
        self.skipping: set[Term] = outer.skipping if outer is not None else set()
        """Floating-point maxima and minima over devices, which skip NaN."""
        self.makers: dict[Var, Op] = {}
        self.exponents: dict[Op, bool] = {}
        """For a maximum or minimum, whether the difference from it is an argument of `exp`."""
        self.depth = 0
        self.count = 0

    def known(self, term: Term) -> bool:
        """Return whether the reference program has a value with this term."""
        return self.reference is None or term in self.reference.seen

    def familiar(self, term: Term) -> bool:
        """Return whether the reference has this term, or has it broadcast to another shape.

        A device that fills its own rows with a number has fewer of them than one device has; this
        is not where two programs begin to differ.
        """
        inner = term.kids[0][1] if term.op == "bcast" else term
        return self.known(term) or inner.op in ("one", "literal") or self.known(inner)

    def has(self, term: Term) -> bool:
        """Return whether a value with this term came before, here or in an outer walk."""
        return term in self.seen or (self.outer is not None and self.outer.has(term))

    def shapes_of(self, term: Term) -> set[Shape]:
        """Return the shapes to which the reference program reshapes a term."""
        return self.reference.reshapes.get(term, set()) if self.reference is not None else set()

    def note(self, kind: str, op: Op, axis: Axis | None, v: Value) -> None:
        """Record a step of a term, for the message of a finding."""
        if self.reference is not None:
            step = TermEvent(kind, op, axis, self.count, v.coef)
            self.steps.setdefault(T.core(v.term), []).append(step)

    def scaled(self, op: Leaf, ins: Sequence[Value], out: Value) -> None:
        """Record a multiplication or division by a number that differs from the reference."""
        for by in ins:
            if T.is_one(by.term) and abs(by.coef) != 1:
                key = op.name, op.where, by.scaled
                if self.reference is None:
                    self.numbers.add(key)
                elif key not in self.reference.numbers:
                    self.note("scaled", op, None, out)

    @abc.abstractmethod
    def anew(self) -> Notes:
        """Return a new walk from this point, whose records are dropped unless taken over."""

    def take_over(self, other: Notes, but: Axis) -> None:
        """Merge the records of another walk, except the steps over its own axis."""
        self.count = other.count
        self.seen |= other.seen
        self.makers |= other.makers
        self.strays |= {t: stray for t, stray in other.strays.items() if t not in self.strays}
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
        """Return the meanings of a body's results."""

    def iteration(self, body: Body, ins: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        """Return the meanings of the results of one iteration; `given` are the carried values."""
        return self.run(body, ins)

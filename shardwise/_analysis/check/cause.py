"""Turn a difference that the symbolic analysis found into a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from ..._meaning import Coef, Gap, Mistake, TermEvent, below
from ..._mesh import Axis
from ..._program import Collective, Join, Leaf, Lit, Where, within
from ..faults import (
    MEANING,
    CountedOften,
    Differs,
    Finding,
    NotFollowed,
    OtherDimension,
    ShareReturned,
    ShareUsed,
    TooLarge,
    TooSmall,
    nowhere,
)
from ..faults.powers import Powers, Seen, Sizes, plain_product, powers, size_words
from .diagnose import line_of
from .two_ways import two_ways


def names(axes: Iterable[Axis | str]) -> str:
    """Return axes as written in a collective: `'data'` or `('data', 'model')`."""
    listed = [axis if isinstance(axis, str) else axis.name for axis in axes]
    return repr(listed[0]) if len(listed) == 1 else repr(tuple(listed))


def cause(gap: Gap, leaf: str, axes: Sequence[Axis], mesh: str, seen: Seen = ()) -> Finding:
    """Return the finding for one place where a result starts to differ from one device.

    `seen` has the factor at this place on every mesh that was read (`ratios`).
    """
    if gap.kind == "times" and gap.ratio is not None:
        multiple = Multiple(gap, tuple(axes), seen)
        faults = CountedOften, TooLarge, TooSmall
        finding = next(filter(None, (fault.from_meaning(multiple) for fault in faults)))
    elif gap.kind == "mistake" and gap.mistake is not None and gap.mistake.axes:
        misuse = Misuse(gap.mistake.used or gap.mistake, gap.ratio)
        finding = ShareReturned.from_meaning(misuse) or ShareUsed.from_meaning(misuse)
    elif gap.kind in ("first", "moved") and gap.stray is not None:
        fault = Differs if gap.kind == "first" else OtherDimension
        finding = fault.from_meaning(names(gap.axes), line_of(gap.stray))
    else:
        op = gap.mistake.op if gap.mistake is not None else gap.stray
        where = op.where if op is not None else nowhere()
        name = gap.stray.name if isinstance(gap.stray, Leaf | Collective) else ""
        finding = NotFollowed.from_meaning(gap, mesh, where, name)
    message = f"{leaf} {finding.message}"
    return dataclasses.replace(finding, leaf=leaf, mesh=mesh, message=message, evidence=MEANING)


def ratios(gap: Gap, known: Iterable[tuple[Sizes, Sequence[Gap]]]) -> Seen:
    """Return the factor at one place on each mesh.

    A mesh on which the result differs already at a later operation is left out.
    """
    factors: list[tuple[Sizes, Fraction]] = []
    for sizes, gaps in known:
        match = next((candidate for candidate in gaps if candidate.term is gap.term), None)
        if match is not None and match.ratio is not None:
            factors.append((sizes, Fraction(match.ratio)))
        elif not any(gap.term in below(candidate.term) for candidate in gaps):
            factors.append((sizes, Fraction(1)))
    return factors


class Multiple:
    """A value that is a multiple of that on one device, and the steps that led to it."""

    def __init__(self, gap: Gap, axes: tuple[Axis, ...], seen: Seen):
        self.gap, self.ratio = gap, Fraction(gap.ratio or 0)
        self._counted = [step for step in gap.steps if step.kind == "counted"]
        self._fitting = powers({axis.name: axis.size for axis in axes}, self.ratio, seen)
        self.powers = self._most_likely()
        """The power of each axis size in the factor."""
        self._axes = tuple(axis for axis in axes if axis.name in self.powers)
        self.over = names(self._axes)
        """The axes of the factor, as written in a collective."""
        self.number = _number(self.ratio)
        """The factor as text."""
        self.made_of = "" if gap.whole else "is computed from a value that "
        """The text for a difference inside a result: not new params are off, but their gradient."""
        clear = self.powers and (len(self._fitting) == 1 or self._explained(self.powers))
        large = clear and plain_product(self.powers)
        small = clear and plain_product(self.powers, -1)
        self.direction = 1 if large else -1 if small else 0
        """1 for a plain product of axis sizes, -1 for its inverse, 0 for neither."""

    def _most_likely(self) -> Powers:
        """Return the powers that fit, preferably those whose axes have a known step."""
        last = self._counted[-1] if self._counted else None
        by_count = (candidate for candidate in self._fitting if last and _is_in(last, candidate))
        by_step = filter(self._explained, self._fitting)
        return next(by_count, None) or next(by_step, None) or next(iter(self._fitting), {})

    def _explained(self, guess: Powers) -> bool:
        """Return whether there is a known step over each of these axes."""
        return guess.keys() <= _axes_of(self.gap.steps)

    def sums_all(self, steps: Sequence[TermEvent]) -> bool:
        """Return whether there is a step over each axis of the factor."""
        return self.powers.keys() <= _axes_of(steps)

    def over_axes(self, steps: Sequence[TermEvent]) -> str:
        """The axes of the factor that these steps are over, as written in a collective."""
        return names([axis for axis in self._axes if axis.name in _axes_of(steps)])

    @property
    def counted(self) -> TermEvent | None:
        """The step at which a whole value was added to a share, if that explains the factor."""
        last = self._counted[-1] if self._counted else None
        return last if last and (not self._fitting or _is_in(last, self.powers)) else None

    @property
    def inverse(self) -> str:
        """The inverse of the factor as text."""
        return _number(1 / self.ratio)

    def steps(self, kind: str, everywhere: bool = False) -> list[TermEvent]:
        """Return the steps of one kind, over the axes of the factor or `everywhere`."""
        of_kind = [step for step in self.gap.steps if step.kind == kind]
        return [step for step in of_kind if everywhere or step.axis in self._axes]

    @property
    def paid(self) -> list[TermEvent]:
        """The sums over devices; with one element per device there are none, only the blocks."""
        return self.steps("paid") or self.steps("blocks")

    @property
    def by_hand(self) -> list[TermEvent]:
        """The steps that scale by a number which depends on the devices, other than in a mean."""
        return [step for step in self.steps("scaled", everywhere=True) if not self.is_mean(step)]

    def step_line(self, index: int) -> Where:
        """Return the line of a step by its index; `nowhere()` if there are no steps."""
        return self.gap.steps[index].op.where if self.gap.steps else nowhere()

    def unclear(self) -> tuple[str, Where, str]:
        """Return message, line and remedy for a factor that is no plain product of axis sizes."""
        reason = f": {', or '.join(map(size_words, self._fitting))}" if self._fitting else ""
        scaled = self.by_hand if not self._fitting else []
        if scaled:
            reason = ": what it is multiplied or divided by here depends on the number of devices"
        steps = [step for step in self.gap.steps if step.axis is None or _is_in(step, self.powers)]
        steps = scaled[-1:] or steps or [*self.gap.steps]
        op = steps[0].op if steps else self.gap.stray
        return (
            f"{self.made_of}is {self.number} times what it is on one device{reason}",
            line_of(op) if op is not None else nowhere(),
            "look at what is counted, summed and averaged on the way, over which axes.",
        )

    @staticmethod
    def is_mean(step: TermEvent) -> bool:
        """Return whether a step is part of a `pmean`."""
        return within(step.op.source, "pmean")

    def gradient(self, step: TermEvent) -> tuple[Where, str]:
        """Return the line of the `grad` that made a step, and how to write it."""
        return line_of(step.op), two_ways(step.op, self.over)

    @staticmethod
    def counts(step: TermEvent) -> bool:
        """Return whether the summed value has an integer dtype."""
        return jnp.issubdtype(step.op.outs[0].dtype, jnp.integer)

    @staticmethod
    def divides(step: TermEvent, number: Fraction) -> bool:
        """Return whether a step divides by this number, or multiplies by its inverse."""
        op = step.op
        if not isinstance(op, Leaf) or op.name not in ("div", "mul") or len(op.ins) != 2:
            return False
        literals = [np.asarray(atom.value) for atom in op.ins if isinstance(atom, Lit)]
        divisor = float(number if op.name == "div" else 1 / number)
        return any(bool((abs(factor / divisor - 1) < 1e-6).all()) for factor in literals)


def _axes_of(steps: Iterable[TermEvent]) -> set[str]:
    """Return the names of the axes that steps are over."""
    return {step.axis.name for step in steps if step.axis is not None}


def _is_in(step: TermEvent, one: Powers) -> bool:
    return step.axis is not None and one.get(step.axis.name, 0) > 0


def _number(ratio: Fraction) -> str:
    if ratio.denominator == 1:
        return str(ratio.numerator)
    texts = (f"{float(ratio):.{digits}g}" for digits in (6, 9, 17))
    return next((text for text in texts if text != "1"), str(ratio))


class Misuse:
    """An operation that uses a share of a sum or of a maximum as the whole."""

    def __init__(self, mistake: Mistake, ratio: Coef | None):
        op, born, maker = mistake.op, mistake.born, mistake.maker
        self.mistake, self.ratio = mistake, ratio
        """For returned shares, the ratio is the multiple of the result that their sum is."""
        self.over = names(mistake.axes)
        """The axes of the share, as written in a collective."""
        self.line = line_of(op)
        """The line that uses the share."""
        self.returned = isinstance(op, Join)
        self.same = isinstance(op, Join) and set(mistake.axes) <= set(op.replicated)
        """Whether it is returned as the same on all devices."""
        arrays = [a for a in maker.ins if not isinstance(a, Lit)] if isinstance(maker, Leaf) else []
        self.joins_parts = len(arrays) == 2
        """Whether the share was made by combining two arrays."""
        backward = born is not None and born.backward
        self.gradient = born if backward and op.backward else None
        """The operation that makes the share, if both are in a backward pass."""
        line = line_of(born or op)
        elsewhere = line.function != op.where.function and not self.returned
        # The line of the loss does not show where its gradient is taken.
        self.where = op.where if backward and elsewhere and not op.differentiated else line
        """The line that computes the share."""

    @property
    def divides_whole(self) -> bool:
        """Whether the dividend of a division by the share is not a share itself."""
        return self.mistake.owed[0].isdisjoint(self.mistake.axes)

    @property
    def variance(self) -> tuple[str, str] | None:
        """For `(x - mean(x)) ** 2`, the arguments of the two means to use instead."""
        deviation, total, op = self.mistake.maker, self.mistake.born, self.mistake.op
        if not (isinstance(deviation, Leaf) and isinstance(total, Leaf) and isinstance(op, Leaf)):
            return None
        squares = op.name == "mul" and op.ins[0] is op.ins[1]
        squares |= op.name == "square" or (op.name == "integer_pow" and op.params["y"] == 2)
        centred = deviation.name == "sub" and total.name == "reduce_sum"
        if not squares or not centred or deviation.ins[0] is not total.ins[0]:
            return None
        dims = tuple(total.params["axes"])
        text = str(dims[0] if len(dims) == 1 else dims) if total.outs[0].shape else ""
        return text if dims == tuple(range(len(dims))) else f"{text}, keepdims=True", text

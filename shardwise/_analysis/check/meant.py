"""What meaning says of a check: which results are proved, and why the others are wrong.

A result whose meaning is the same on the mesh and on one device needs no comparison of numbers, so
a mesh on which all are proved is run only where it is the largest, as a cross-check. Where numbers
are wrong, the place at which the meanings part is the cause.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from ... import _jax
from ..._base.doing import doing
from ..._base.errors import ShardwiseError, warn
from ..._meaning import Gap, Mistake, Reading, Step, vanishing
from ..._mesh import abstract, axes_of
from ..._program import Join
from .alone import alone
from .cause import cause, grouped, ratios
from .compare import wide
from .describe import much
from .flow import ancestors
from .judging import OTHER, SAME
from .options import words
from .powers import Seen, Sizes, powers
from .relate import share_of
from .running import Run
from .verdict import Finding
from .wrong import Wrong

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Hidden:
    """A cause that the numbers do not show, and what was counted several times."""

    finding: Finding
    run: Run
    counted: Step | None

    def explains(self, one: Wrong, seen: Seen) -> bool:
        """Whether a result is wrong by just that factor, and is made from where it arises."""
        step = self.counted
        if step is None or step.axis is None or one.run is not self.run or one.times is None:
            return False
        target = one.run.body.outs[one.index]
        fits = powers(one.sizes, one.times, seen, one.slack) == [{step.axis.name: 1}]
        return fits and any(op is step.op for op in ancestors(one.run.body, target))


class Meant:
    """The meanings of the results of one program on several meshes."""

    def __init__(self, base: Run):
        self.base = base
        self._known: dict[int, list[list[Gap]] | None] = {}
        self._read_on: dict[int, tuple[Sizes, list[list[Gap]] | None]] = {}
        """The same with the sizes of the meshes."""
        self.plain = _read(base, None)

    def gaps(self, run: Run) -> list[list[Gap]] | None:
        """For each result where it parts from one device's; None where that is not known."""
        if id(run) not in self._known:
            self._known[id(run)] = self._compared(run)
            if run.mesh is not None:
                self._read_on[id(run)] = dict(run.mesh.shape), self._known[id(run)]
        return self._known[id(run)]

    def _compared(self, run: Run) -> list[list[Gap]] | None:
        if self.plain is None or run.traced.tree != self.base.traced.tree:
            return None
        own = _read(run, self.plain)
        return _followed(own.gaps) if own is not None else None

    def proved(self, run: Run) -> bool:
        """Whether every result is proved to be what it is on one device."""
        found = self.gaps(run)
        return found is not None and not any(found) and not run.program.watch.sites

    def judged(self, run: Run) -> list[str | None]:
        """What is known of each result: that it is the same as on one device, or another."""
        found = self.gaps(run)
        if found is None or run.program.watch.sites:
            return [None] * len(run.paths)
        return [SAME if not gaps else OTHER if _is_certain(gaps) else None for gaps in found]

    def likewise(self, run: Run, larger: Run) -> bool:
        """Whether the same results are multiples of something as on a larger mesh, and show it."""
        here, there = self.gaps(run), self.gaps(larger)
        if here is None or there is None or run.program.watch.sites:
            return False
        alike = all(bool(own) == bool(other) for own, other in zip(here, there, strict=True))
        # What is lost on the way on one of them may not be on the other.
        return alike and any(here) and all(gap.linear for gaps in [*here, *there] for gap in gaps)

    def causes(self, wrong: list[Wrong]) -> tuple[list[Finding], list[Wrong]]:
        """The causes of wrong results, and those results of which none is known."""
        found: dict[int, Finding] = {}
        for one in wrong:
            told = self._cause(one)
            # Meshes come in order of size: the largest tells most. But where each device has a
            # single element nothing is added up, and then only a smaller one shows a share.
            if told is not None and (told.code != "SW406" or one.index not in found):
                found[one.index] = told
        return grouped([*found.values()]), [one for one in wrong if one.index not in found]

    def hidden(self, run: Run, wrong: list[Wrong]) -> list[Hidden]:
        """What results are multiples of, or made from, that the numbers on a mesh do not show.

        A bias that is counted once for each device is zero at the start of every training.
        """
        if run.program.watch.sites:
            return []
        shown = {one.index for one in wrong if one.run is run}
        zero, known = _zeros(run), {}
        found = []
        for index, gaps in enumerate(self.gaps(run) or ()):
            rows = [(gap, vanishing(gap.term, zero, known)) for gap in gaps if gap.kind == "times"]
            seen = [(gap, own) for gap, own in rows if index not in shown and (own or gap.sure)]
            for gap, own in seen[:1]:
                told = self._told(run, index, gap)
                names = " and ".join(run.traced.argument_paths[number] for number in own)
                data = f", in which {names} {'are' if len(own) > 1 else 'is'} zero" if own else ""
                right = "It is right with this data"
                if not np.isfinite(wide(run.values[index].first)).all():
                    right = "With this data it is NaN or infinite, and nothing is seen of it"
                message = f"{told.message} (on {told.mesh}). {right}{data}"
                finding = dataclasses.replace(told, message=message, certain=False)
                counted = [step for step in gap.steps if step.kind == "counted"]
                found.append(Hidden(finding, run, counted[-1] if counted else None))
        return found

    def _told(self, run: Run, index: int, gap: Gap) -> Finding:
        """Where a result parts from one device's, as a finding."""
        assert run.mesh is not None
        known = [(mesh, own[index]) for mesh, own in self._read_on.values() if own is not None]
        axes = tuple(axes_of(run.mesh).values())
        mesh = words(abstract(run.mesh))
        gap = _along_alone(gap, known)
        return cause(gap, run.paths[index], axes, mesh, ratios(gap, known))

    def _cause(self, one: Wrong) -> Finding | None:
        if one.structure or not one.same_type:
            return None
        known = self.gaps(one.run)
        if not known or not known[one.index]:
            return None
        gap = _tied(known[one.index][0], one)
        if gap is None:
            return None
        first = self._told(one.run, one.index, _measured(gap, one))
        if first.code == "SW409":
            return alone(gap.stray, one, much(one))
        if not first.where.file:
            return None
        symptom = f"{much(one)}, " if first.code == "SW405" else ""
        symptom = "NaN or infinite " if one.not_finite else symptom
        return dataclasses.replace(first, message=f"{first.message} ({symptom}on {first.mesh})")


def _tied(gap: Gap, one: Wrong) -> Gap | None:
    """Where a result parts from one device's, if the numbers say that it is wrong for that.

    To use a share before it is summed may be right, and what is wrong may be something else.
    """
    if gap.kind == "first" and not one.apart:
        return None  # what is read as each device's own may be the same on all of them
    if not gap.mistakes:
        return gap
    tied = (own for own in gap.mistakes if _is_tied(own, one))
    mistake = next(tied, None)
    return mistake and dataclasses.replace(gap, mistake=mistake)


def _along_alone(gap: Gap, known: list[tuple[Sizes, list[Gap]]]) -> Gap:
    """Of shares that are returned, the multiple on a mesh along their own axes, if it was read.

    A sum too many along another axis of the same size makes them look like means.
    """
    own = gap.mistake
    if own is None or not own.returned:
        return gap
    axes = {axis.name for axis in own.axes}
    for sizes, gaps in known:
        if {name for name, size in sizes.items() if size > 1} == axes:
            ratios = [one.ratio for one in gaps if one.mistake and one.mistake.returned]
            if ratios == [1]:
                return dataclasses.replace(gap, ratio=1)
    return gap


def _measured(gap: Gap, one: Wrong) -> Gap:
    """With the multiple that the sum of returned shares is, by the numbers, if it is not known."""
    own = gap.mistake
    if own is None or not own.returned or own.extreme or gap.ratio is not None or not one.apart:
        return gap
    assert one.value is not None
    lacks = share_of(one.value, one.want.value, one.agree)
    if lacks is None or {*lacks.axes} != {*own.axes}:
        return gap
    count = math.prod(axis.size for axis in own.axes)
    return dataclasses.replace(gap, ratio=count if lacks.missing == "pmean" else 1)


def _is_tied(mistake: Mistake, one: Wrong) -> bool:
    if not mistake.returned:
        return one.comes_from(mistake.op)
    assert isinstance(mistake.op, Join)
    # What all devices have alike is nobody's share.
    return one.apart or not set(mistake.axes) <= set(mistake.op.replicated)


def _zeros(run: Run) -> Callable[[int], bool]:
    """Whether an argument is zero everywhere, by its number."""
    values = run.traced.argument_values

    @functools.cache
    def is_zero(number: int) -> bool:
        value = values[number]
        if _jax.is_traced(value) or _jax.is_key(jax.typeof(value).dtype):
            return False
        return not np.asarray(value).any()

    return is_zero


def _is_certain(gaps: list[Gap]) -> bool:
    return any(gap.kind in ("times", "mistake") and gap.sure for gap in gaps)


def _read(run: Run, plain: Reading | None) -> Reading | None:
    doing(f"following each value {run.on}")
    constants = run.traced.constants
    return _followed(lambda: Reading(run.body, constants, plain))


def _followed(f: Callable[[], T]) -> T | None:
    try:
        return f()
    except ShardwiseError:
        raise
    except Exception as error:  # a gap in the analysis must not cost the user the verdict
        _tell(error)
        return None


def _tell(error: Any) -> None:
    warn(
        f"shardwise could not follow this program ({type(error).__name__}: {error}), and compares "
        "numbers alone. This is a bug in shardwise: a report with the program would help.",
        RuntimeWarning,
    )

"""Run a program on several meshes, compare the results, and find the causes of differences."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from ..._base.doing import doing
from ..._base.errors import DeadlockError, name_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import Gap, Reading, TooLate
from ..._mesh import AbstractMesh, one_device, words
from ..._program import Collective, Where, walk
from ..compiler.outside import checked_part
from ..draw import Conditions, DrawnArguments, is_zero, without_zeros
from ..faults import (
    MEANING,
    Deadlock,
    Differs,
    Finding,
    HiddenByZeros,
    OtherType,
    Ties,
    Unmet,
    nowhere,
    place_of,
    split_silenced,
)
from ..lift import Run, asks_for_nan
from .clash import run_on
from .compare import Wanted, tolerances
from .diagnose import place
from .joined import Outcome, causes, led_by_a_cause
from .judging import judge_results
from .meant import Meant
from .numbers import beyond_reference, paths_apart
from .reference import wanted_of
from .seen import unseen, with_values
from .verdict import Verdict
from .wrong import Wrong

AGAIN = 3
"""How often to redraw values if the first ones show nothing wrong and nothing is proved."""


@contextlib.contextmanager
def _exactly() -> Iterator[None]:
    """Use the highest precision, and compile.

    Accelerators round the operands of float32 products to ten bits by default, which would hide
    all other differences. `jax.disable_jit` is meant for the user's own calls.
    """
    with jax.default_matmul_precision("highest"), jax.disable_jit(False):
        yield


@contextlib.contextmanager
def _in_time(left_out: list[str], clause: str) -> Iterator[None]:
    """Leave out the rest of the block, and note it, once the deadline is too close."""
    try:
        yield
    except TooLate:
        left_out.append(clause)


@_exactly()
def examine(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    all_meshes: bool = False,
    finite: bool = False,
    first: Tracing | None = None,
) -> Examined:
    """Run `f` on meshes and compare. `options` are `in_specs` and the static arguments.

    With `finite`, no NaN and no other number that the program tests for is drawn. `first` traces
    `f` on one device; a caller that has traced it already passes it.
    """
    ones = one_device(meshes[0])
    # Drawn values have no sharding, but the shapes that they replace may have one.
    first = first or Tracing(f, ones, *options).specified(args)
    if reference is not None and not _is_traceable(first, args):
        ones = meshes[0]  # the program hard-codes a number of devices
        first = Tracing(f, ones, *options).specified(args)
    options = first.in_specs, first.static
    drawing = DrawnArguments(first, args)

    def compared(
        seed: int, like: Examined | None = None, given: tuple[Any, ...] | None = None
    ) -> Examined:
        """Compare with these values; `like` is an earlier comparison, then numbers alone count."""
        first, known = drawing.tracing, like.base if like else None
        base, inputs = (
            drawing.run(seed, known) if given is None else (Run(first, given, known), given)
        )
        wanted = wanted_of(reference, base, inputs)
        if like is None:
            others = [Tracing(f, mesh, *options) for mesh in meshes]
            runs = [base if t.mesh_around == ones else run_on(t, inputs, first) for t in others]
        else:
            runs = [base if run is like.base else run.again(inputs) for run in like.runs]
        limits = tolerances(base, runs, rtol, atol, [expected.eps for expected in wanted])
        meaning = Meant(base) if like is None and ones.size == 1 else None
        follows = meaning if reference is None and base.paths else None
        return Examined(
            base, runs, meshes, limits, meaning, follows, wanted, inputs, bool(drawing), all_meshes
        )

    left_out: list[str] = []
    unmet: list[tuple[Where, str]] = []
    comparison = compared(seed)
    try:
        comparison.run()
    except TooLate:
        if not comparison.wrong_on:
            raise
        left_out.append("the other meshes were not run")
    if comparison.drawn and comparison.is_open:
        with _in_time(left_out, "other values were not tried"):
            conditions = None if finite else comparison.conditions(drawing)
            answers = conditions.answers(seed) if conditions else ()
            for again, given in enumerate(itertools.chain([None] * AGAIN, answers), 1):
                other = compared(seed + again, comparison, given)
                is_wrong = other.run()
                has_ties = given is not None and conditions is not None and conditions.has_ties
                if is_wrong and not has_ties:
                    comparison = compared(seed + again, given=given)
                    comparison.run()
                    break
                if given is not None:
                    comparison.tied += [*other.tied, *other.wrong]
                elif conditions:
                    conditions.see(other.args)
            else:
                unmet = conditions.unmet() if conditions else []
    base, runs = comparison.base, comparison.runs
    doing("looking for the line" if comparison.wrong_on else "reading the program")
    findings: list[Finding] = []
    lost = "the line was not looked for" if comparison.wrong_on else "other values were not tried"
    with _in_time(left_out, lost):
        findings = comparison.findings()
        if not comparison.wrong_on:
            evidence = reference is not None, comparison.is_proved
            tied = {tie.index: tie for tie in comparison.tied}  # meshes come in order of size
            blind = [*unseen(base, runs, meshes, *evidence), *map(Ties.of, tied.values())]
            blind += [Unmet.of(unmet)] if unmet else []
            findings += list(map(with_values, blind)) if comparison.drawn else blind
            explained = bool(blind) or any(finding.evidence == MEANING for finding in findings)
            known = reference is not None and not callable(reference)
            has_zeros = any(map(is_zero, base.traced.argument_values))
            if comparison.is_open and has_zeros and not explained and not known:
                others = without_zeros(comparison.args, seed)
                if compared(seed, comparison, others).run():
                    findings += compared(seed, given=others).hidden_by_zeros(base)
    reported, silenced = split_silenced(findings, place_of(f))
    reported = led_by_a_cause(reported)
    certain = any(finding.certain for finding in reported)
    comparison.verdict = Verdict(
        reported,
        tuple(map(words, meshes)),
        len(comparison.limits),
        name_of(f),
        wrong_on=comparison.blamed(reported) if certain else (),
        silenced=silenced,
        drawn=comparison.drawn,
        proved_on=tuple(comparison.proved_on),
        not_run=tuple(comparison.not_run),
        checked=checked_part(runs[-1].traced, args, meshes[-1]),
    )
    comparison.left_out = left_out
    return comparison


def _is_traceable(tracing: Tracing, args: tuple[Any, ...]) -> bool:
    try:
        tracing(args, {})
    except Exception:  # if the meshes to check have the same problem, they raise it
        return False
    return True


@dataclasses.dataclass(eq=False)
class Examined(Outcome):
    """The runs of one program, compared with the expected results, and the verdict."""

    follows: Meant | None
    """The symbolic analysis, where it decides: without a reference."""
    wanted: Sequence[Wanted]
    args: tuple[Any, ...]
    """The arguments, with values drawn for all shapes."""
    drawn: bool
    """Whether some of their values were drawn."""
    all_meshes: bool
    """Whether to compare on every mesh, even after a larger one was wrong."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.not_run: list[str] = []
        self.left_out: list[str] = []
        """What was not done because of the deadline, as clauses."""
        self.verdict = Verdict((), (), 0)

    @property
    def stuck_on(self) -> list[str]:
        """The meshes on which devices wait for each other forever."""
        failed = self.failed.items()
        return [mesh for mesh, finding in failed if finding.code == Deadlock.code]

    @property
    def reading(self) -> Reading | None:
        """The symbolic reading of the program on one device, if there is no reference."""
        return self.follows.plain if self.follows else None

    @property
    def gaps(self) -> list[list[Gap]] | None:
        """For each result, where it differs from one device on the largest mesh, if known."""
        return self.follows.gaps(self.largest) if self.follows else None

    @property
    def programs(self) -> list[Run]:
        """All programs that were run: on one device, on each mesh, and the reference."""
        references = [wanted.run for wanted in self.wanted if wanted.run is not None]
        return [*dict.fromkeys([self.base, *self.runs, *references])]

    def agrees(self, tracing: Tracing) -> bool:
        """Return whether another version of the program gives the right results on its mesh."""
        run = Run(tracing, self.args)
        if run.traced.tree != self.base.traced.tree:
            return False
        return not judge_results(run, self.base, self.wanted, self.limits)[0]

    @property
    def is_proved(self) -> bool:
        """Whether the program is proved right on every mesh, for all inputs."""
        return {*self.proved_on} >= set(map(words, self.meshes))

    @property
    def is_open(self) -> bool:
        """Whether other values may show what these do not, and are cheap to try."""
        return not self.wrong_on and not self.is_proved and self.base.is_light

    def conditions(self, drawing: DrawnArguments) -> Conditions:
        """Return the conditions of the results that are not proved, and what was seen of them."""
        run = self.runs[-1]
        gaps = self.follows.gaps(run) if self.follows else None
        unproved = [i for i in range(len(run.body.outs)) if gaps is None or gaps[i]]
        conditions = Conditions(drawing, run, self.base, unproved)
        conditions.see(self.args)
        return conditions

    def hidden_by_zeros(self, base: Run) -> list[Finding]:
        """Return what is wrong with these values, but hidden by the zeros of `base`."""
        certain = [finding for finding in self.findings() if finding.certain] if self.run() else []
        rows = zip(base.traced.argument_paths, base.traced.argument_values, strict=True)
        zero = [path for path, value in rows if is_zero(value)]
        return [HiddenByZeros.by(zero, finding) for finding in certain[:1]]

    def run(self) -> bool:
        """Compare on the largest mesh, then on smaller meshes that are not proved.

        After the first wrong mesh, the analysis decides which smaller meshes are wrong too; those
        that it cannot decide are compared if the program is short or all meshes were requested. A
        proved mesh is still compared if it is the largest or the program is short: the analysis
        ignores overflow. If the largest mesh is proved and yet wrong, all are compared. Returns
        whether anything is wrong.
        """
        smaller: list[tuple[Run, AbstractMesh]] = []
        proved: list[tuple[Run, AbstractMesh]] = []
        for run, mesh in reversed(self._pairs):
            if self.follows is not None and self.follows.proved(run):
                self.proved_on.append(words(mesh))
                if not self._proof_needs_numbers and run not in (self.largest, self.base):
                    proved.append((run, mesh))
                    continue
            if self.wrong and run is not self.base:
                smaller.append((run, mesh))
            else:
                self.compare(run, mesh)
        if smaller:
            self._confirm(smaller)
        if self.wrong_on and self.follows is not None and self.follows.proved(self.largest):
            for run, mesh in proved:
                self.compare(run, mesh)
        else:
            self.tried += [dict(mesh.shape) for _, mesh in proved]
        order = list(map(words, self.meshes)).index
        self.wrong.sort(key=lambda result: order(result.mesh))
        self.wrong_on = sorted({*self.wrong_on}, key=order)
        self.proved_on.sort(key=order)
        return bool(self.wrong_on)

    @property
    def _proof_needs_numbers(self) -> bool:
        """Whether to run proved meshes too: values may overflow, or it costs little."""
        return self.base.is_short or self.base.by_numbers

    @property
    def _pairs(self) -> list[tuple[Run, AbstractMesh]]:
        return [*zip(self.runs, self.meshes, strict=True)]

    def _confirm(self, smaller: Sequence[tuple[Run, AbstractMesh]]) -> None:
        """Decide which smaller meshes are wrong too, and compare those where numbers are needed."""
        larger, alike = self.wrong[0].run, []
        if self.follows is not None and not (self.all_meshes or self.base.by_numbers):
            alike = [
                (run, mesh) for run, mesh in smaller if self.follows.differs_alike(run, larger)
            ]
        self.wrong_on += [words(mesh) for _, mesh in alike]
        if self.all_meshes or self.base.is_short:
            compared = [pair for pair in smaller if pair not in alike]
        else:
            compared = []
        compared += [pair for pair in self._clearer(smaller) if pair not in compared]
        for run, mesh in compared:
            self.compare(run, mesh)
        settled = [*alike, *compared]
        self.not_run = [words(pair[1]) for pair in smaller if pair not in settled][::-1]

    def _clearer(
        self, smaller: Sequence[tuple[Run, AbstractMesh]]
    ) -> list[tuple[Run, AbstractMesh]]:
        """Return the smallest mesh along each axis, if the largest does not show the cause.

        Axes of equal size cannot be told apart, and with one element per device nothing is summed.
        """
        findings, rest = causes(self.meant, beyond_reference(self.wrong)[1])
        if not rest and not any(finding.code == Differs.code for finding in findings):
            return []
        by_axis: dict[str, tuple[Run, AbstractMesh]] = {}
        for run, mesh in smaller:
            large = [str(name) for name, size in mesh.shape.items() if size > 1]
            if len(large) == 1:
                by_axis[large[0]] = (run, mesh)  # the smallest comes last
        return [*by_axis.values()]

    def compare(self, run: Run, mesh: AbstractMesh) -> None:
        """Compare the results on one mesh numerically."""
        name, base = words(mesh), self.base
        if run.traced.tree != base.traced.tree:
            differ = paths_apart(run.paths, base.paths)
            where = place(run.body.ops[-1], run.body) if run.body.ops else nowhere()
            self.failed[name] = OtherType.structure(differ, where, name)
            self.wrong_on.append(name)
            return
        surely = self.follows.surely_wrong(run) if self.follows else []
        try:
            wrong, tied = judge_results(run, base, self.wanted, self.limits, surely)
        except DeadlockError as error:
            self.failed[name] = _deadlock(error, run, mesh)
            self.wrong_on.append(name)
            return
        self.tried.append(dict(mesh.shape))
        self.wrong += wrong
        self.tied += tied
        self.wrong_on += [name] * bool(wrong)
        if wrong and name in self.proved_on and _is_beyond_meaning(run, wrong):
            self.proved_on.remove(name)


def _is_beyond_meaning(run: Run, wrong: Sequence[Wrong]) -> bool:
    """Return whether proved results may be wrong: the analysis ignores overflow and NaN."""
    if run.wrapping() is not None or asks_for_nan(run.body):
        return True
    return all(result.not_finite or result.finite_alone for result in wrong)


def _deadlock(error: DeadlockError, run: Run, mesh: AbstractMesh) -> Finding:
    op = run.stuck_at
    assert op is not None
    waits = next(c for b in op.bodies for c in walk(b.ops) if isinstance(c, Collective))
    return Deadlock.from_numbers(error, waits.where, words(mesh))

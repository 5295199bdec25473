"""Run a program on several meshes, compare, and say what is wrong and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..._base.doing import doing
from ..._base.errors import DeadlockError, name_of
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import Gap, Reading
from ..._mesh import AbstractMesh, axes_of, one_device
from ..._program import Collective, walk
from .cause import grouped
from .clash import run_on
from .compare import agree
from .describe import describe, factors_of
from .draw import is_zero, run_drawn, without_zeros
from .judging import all_agree, judge_results
from .lint import came_out, lint, made_up_for, parted, place_of_values
from .meant import Hidden, Meant
from .options import words
from .powers import Sizes
from .ranges import asks_whether_finite
from .reference import wanted_of
from .running import Run, Wanted
from .seen import hidden_by_zeros, ties, unseen, with_values
from .silence import place_of, split_silenced
from .told import led_by_a_cause, once
from .verdict import NOWHERE, Finding, Verdict
from .wrong import Wrong

AGAIN = 3
"""How often other values are drawn where those at hand show nothing, and nothing is proved."""


@dataclasses.dataclass(frozen=True, eq=False)
class Examined:
    """A verdict and what it rests on."""

    verdict: Verdict
    wrong: tuple[Wrong, ...]
    """Every wrong result on every mesh."""
    stuck_on: tuple[str, ...]
    """The meshes on which devices wait for each other forever."""
    comparison: _Comparison

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments, with values for all shapes."""
        return self.comparison.given

    @property
    def base(self) -> Run:
        """The program on one device."""
        return self.comparison.base

    @property
    def largest(self) -> Run:
        """The program on the largest mesh."""
        return self.comparison.runs[-1]

    @property
    def reading(self) -> Reading | None:
        """The meaning of the program on one device, if that is what is right."""
        return self.comparison.meant.plain if self.comparison.meant else None

    @property
    def gaps(self) -> list[list[Gap]] | None:
        """For each result where it parts from what is right on the largest mesh, if known."""
        meant = self.comparison.meant
        return meant.gaps(self.largest) if meant else None

    def agrees(self, tracing: Tracing) -> bool:
        """Whether another version of the program gives what is right, on one mesh."""
        one = self.comparison
        return all_agree(Run(tracing, one.given), one.base, one.wanted, one.limits)


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
) -> Examined:
    """Run `f` on meshes and compare. `options` are `in_specs` and the static arguments.

    With `finite`, no NaN is drawn, also if the program asks for it.

    Accelerators round the operands of float32 products to ten bits unless they are told not to,
    which would be all that is seen: here they are. Programs are compiled to be run here, whatever
    `jax.disable_jit` says: it is about the user's own calls.
    """
    with jax.default_matmul_precision("highest"), jax.disable_jit(False):
        return _examine(f, args, meshes, reference, options, rtol, atol, seed, all_meshes, finite)


def _examine(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
    rtol: float | None,
    atol: float | None,
    seed: int,
    all_meshes: bool,
    finite: bool,
) -> Examined:
    in_specs, static = options
    ones = one_device(meshes[0])
    if reference is not None and not _is_traceable(Tracing(f, ones, in_specs, static), args):
        ones = meshes[0]  # the program has a number of devices built in
    # The values that are drawn for shapes do not say how they lie, as the shapes do.
    options = Tracing(f, ones, in_specs, static).lying(args), static

    def compared(
        seed: int,
        like: _Comparison | None = None,
        args: tuple[Any, ...] = args,
        odd: bool = False,
    ) -> _Comparison:
        """With these values, if any are drawn; `like` another comparison, but by numbers alone."""
        first = Tracing(f, ones, *options) if like is None else like.base.tracing
        base, given = run_drawn(first, args, seed, like.base if like else None, odd)
        wanted = wanted_of(reference, base, given)
        if like is None:
            others = [Tracing(f, one, *options) for one in meshes]
            runs = [base if one.around == ones else run_on(one, given, first) for one in others]
        else:
            runs = [base if run is like.base else run.again(given) for run in like.runs]
        limits = base.limits(runs, rtol, atol, [want.eps for want in wanted])
        meant = Meant(base) if reference is None and like is None else None
        drawn = given is not args
        return _Comparison(base, wanted, limits, runs, meshes, meant, given, drawn, all_meshes)

    comparison = compared(seed)
    comparison.run()
    if comparison.drawn and comparison.is_open:
        others = [(seed + 1 + k, False) for k in range(AGAIN)]
        if not finite and asks_whether_finite(comparison.base.body):
            others.append((seed, True))
        shown = (pair for pair in others if compared(pair[0], comparison, odd=pair[1]).run())
        if (pair := next(shown, None)) is not None:
            comparison = compared(pair[0], odd=pair[1])
            comparison.run()
    base, runs = comparison.base, comparison.runs
    doing("looking for the line" if comparison.wrong_on else "reading the program")
    findings = comparison.findings()
    if not comparison.wrong_on:
        given = reference is not None, comparison.is_proved
        dark = [*unseen(base, runs, meshes, *given), *ties(comparison.tied)]
        findings += list(map(with_values, dark)) if comparison.drawn else dark
        told = bool(dark) or any(one.code.startswith("SW4") for one in findings)
        if comparison.has_zeros and not told and (reference is None or callable(reference)):
            others = without_zeros(comparison.given, seed)
            findings += compared(seed, comparison, others).hidden_by_zeros(base)
    kept, silenced = split_silenced(once(findings, comparison.wrong), place_of(f))
    kept = led_by_a_cause(kept)
    certain = any(finding.certain for finding in kept)
    verdict = Verdict(
        kept,
        tuple(map(words, meshes)),
        len(comparison.limits),
        name_of(f),
        wrong_on=comparison.blamed(kept) if certain else (),
        silenced=silenced,
        drawn=comparison.drawn,
        proved_on=tuple(comparison.proved_on),
        not_run=tuple(comparison.not_run),
    )
    return Examined(verdict, tuple(comparison.wrong), tuple(comparison.stuck_on), comparison)


def _is_traceable(tracing: Tracing, args: tuple[Any, ...]) -> bool:
    try:
        tracing(args, {})
    except Exception:  # whatever it is, the meshes that were asked for raise it if they have it too
        return False
    return True


@dataclasses.dataclass(eq=False)
class _Comparison:
    """The runs of one program beside what its results should be."""

    base: Run
    wanted: Sequence[Wanted]
    limits: Sequence[Any]
    runs: Sequence[Run]
    meshes: Sequence[AbstractMesh]
    meant: Meant | None
    given: tuple[Any, ...]
    """The arguments."""
    drawn: bool
    """Whether values were drawn among them."""
    all_meshes: bool
    """Whether to compare on every mesh, also after a larger one was wrong."""

    def __post_init__(self) -> None:
        self.wrong: list[Wrong] = []
        self.tied: list[Wrong] = []
        self.wrong_on: list[str] = []
        self.proved_on: list[str] = []
        self.stuck_on: list[str] = []
        self.stuck: list[Finding] = []
        self.not_run: list[str] = []
        self.tried: list[Sizes] = []
        """The meshes on which numbers were compared, or proved to be right."""
        self.follows = self.meant if self.base.paths else None

    @property
    def is_proved(self) -> bool:
        """Whether it is right on every mesh, with any numbers."""
        return {*self.proved_on} >= set(map(words, self.meshes))

    @property
    def is_open(self) -> bool:
        """Whether other numbers may show what these do not, and are cheap to try."""
        return not self.wrong_on and not self.is_proved and self.base.is_light

    @property
    def has_zeros(self) -> bool:
        """Whether zeros among the arguments may hide something, and others are cheap to try."""
        return self.is_open and any(map(is_zero, self.base.traced.argument_values))

    def hidden_by_zeros(self, base: Run) -> list[Finding]:
        """What is wrong with other numbers than the zeros of `base`."""
        shown = [one for one in self.findings() if one.certain] if self.run() else []
        return [hidden_by_zeros(base, one) for one in shown[:1]]

    def run(self) -> bool:
        """Compare on the largest mesh, then on the smaller ones that are not proved.

        After the first wrong one the smaller meshes are confirmed by meaning; those of which it
        says nothing are compared if the program is short, or all meshes were asked for. A mesh on
        which every result is proved is compared if it is the largest, or the program short: meaning
        knows no overflow. If the largest is wrong for that, all are compared. Says whether anything
        is wrong.
        """
        smaller: list[tuple[Run, AbstractMesh]] = []
        proved: list[tuple[Run, AbstractMesh]] = []
        for run, mesh in reversed(self._pairs):
            if self.follows is not None and self.follows.proved(run):
                self.proved_on.append(words(mesh))
                if not self._proof_needs_numbers and run not in (self.runs[-1], self.base):
                    proved.append((run, mesh))
                    continue
            if self.wrong and run is not self.base:
                smaller.append((run, mesh))
            else:
                self.compare(run, mesh)
        if smaller:
            self._confirm(smaller)
        if self.wrong_on and self.follows is not None and self.follows.proved(self.runs[-1]):
            for run, mesh in proved:
                self.compare(run, mesh)
        else:
            self.tried += [dict(mesh.shape) for _, mesh in proved]
        order = list(map(words, self.meshes)).index
        self.wrong.sort(key=lambda one: order(one.mesh))
        self.wrong_on = sorted({*self.wrong_on}, key=order)
        self.proved_on.sort(key=order)
        return bool(self.wrong_on)

    @property
    def _proof_needs_numbers(self) -> bool:
        """Whether proved meshes are run as well: an overflow is near, or it costs little."""
        return self.base.is_short or self.base.by_numbers

    @property
    def _pairs(self) -> list[tuple[Run, AbstractMesh]]:
        return [*zip(self.runs, self.meshes, strict=True)]

    def _confirm(self, smaller: Sequence[tuple[Run, AbstractMesh]]) -> None:
        """Find out on which of the smaller meshes it is wrong too, and compare where that helps."""
        larger, known = self.wrong[0].run, []
        if self.meant is not None and not (self.all_meshes or self.base.by_numbers):
            known = [(run, mesh) for run, mesh in smaller if self.meant.likewise(run, larger)]
        self.wrong_on += [words(mesh) for _, mesh in known]
        if self.all_meshes or self.base.is_short:
            compared = [pair for pair in smaller if pair not in known]
        else:
            compared = []
        compared += [pair for pair in self._clearer(smaller) if pair not in compared]
        for run, mesh in compared:
            self.compare(run, mesh)
        settled = [*known, *compared]
        self.not_run = [words(pair[1]) for pair in smaller if pair not in settled][::-1]

    def _clearer(
        self, smaller: Sequence[tuple[Run, AbstractMesh]]
    ) -> list[tuple[Run, AbstractMesh]]:
        """The smallest mesh along each axis, where the largest one does not show the cause.

        Axes of one size look alike, and where each device has a single element nothing is added up.
        """
        causes, rest = self.meant.causes(self.wrong) if self.meant else ([], self.wrong)
        if not rest and not any(one.code == "SW406" for one in causes):
            return []
        along: dict[str, tuple[Run, AbstractMesh]] = {}
        for run, mesh in smaller:
            large = [str(name) for name, size in mesh.shape.items() if size > 1]
            if len(large) == 1:
                along[large[0]] = (run, mesh)  # the smallest comes last
        return [*along.values()]

    def compare(self, run: Run, one: AbstractMesh) -> None:
        """The results on one mesh, by numbers."""
        known = self.follows.judged(run) if self.follows else [None] * len(self.limits)
        try:
            here = judge_results(run, self.base, self.wanted, self.limits, known)
        except DeadlockError as error:
            self.stuck.append(_deadlock(error, run, one))
            self.stuck_on.append(words(one))
            self.wrong_on.append(words(one))
        else:
            self.tried.append(dict(one.shape))
            self.wrong.extend(here.wrong)
            self.tied.extend(here.tied)
            self.wrong_on.extend([words(one)] * bool(here.wrong))
            if here.wrong and words(one) in self.proved_on and _is_beyond_meaning(run, here.wrong):
                self.proved_on.remove(words(one))

    def findings(self) -> list[Finding]:
        """The causes first, then what no cause is known of, then what reading suspects."""
        causes, rest = self.meant.causes(self.wrong) if self.meant else ([], self.wrong)
        hidden = self.meant.hidden(self.runs[-1], self.wrong) if self.meant else []
        behind, rest = self._behind(hidden, rest)
        quiet = [] if self.wrong_on else grouped([one.finding for one in hidden])
        read = [
            finding
            for run, one in zip(self.runs, self.meshes, strict=True)
            for finding in (lint(run.body, list(axes_of(one).values())) if self.base.paths else [])
        ]
        if not self.wrong_on:
            read = [made_up_for(one) if one.code == "SW201" else one for one in read]
        if any(one.code == "SW203" for one in read):
            read = self._as_it_came_out(read, known=bool(causes or behind))
        odd = [disagreement(one) for one in sorted({*self.wrong_on} & {*self.proved_on})]
        return [*causes, *behind, *quiet, *describe(rest, self.tried), *self.stuck, *read, *odd]

    def blamed(self, kept: Sequence[Finding]) -> tuple[str, ...]:
        """The meshes on which something is wrong that is not silenced."""
        told = [one for one in kept if one.certain]
        paths = {path for one in told for path in (one.leaf, *one.likewise)}
        on = {one.mesh for one in self.wrong if one.structure or one.path in paths}
        on |= {one.mesh for one in told}
        on |= {*self.stuck_on} if any(one.code == "SW301" for one in told) else set()
        # Those that were not compared are wrong as the largest wrong one is.
        compared = {one.mesh for one in self.wrong} | {*self.stuck_on}
        largest = bool(self.wrong) and self.wrong[-1].mesh in on
        return tuple(one for one in self.wrong_on if one in on or (largest and one not in compared))

    def _as_it_came_out(self, read: Sequence[Finding], known: bool) -> list[Finding]:
        """What is declared the same, unchecked, with what the devices hold on the largest mesh.

        Where a cause is `known`, that they differ follows from it and needs no word.
        """
        run, body = self.runs[-1], self.runs[-1].body
        if words(self.meshes[-1]) in self.stuck_on:
            return list(read)
        apart = [one.maker for one in self.wrong if not one.structure and one.apart]
        shown = {maker.where for maker in apart if maker}
        results = {id(atom) for atom in body.outs}
        joins = [(join, place_of_values(body, join)) for join, _ in parted(body)]
        differ = {where: where in shown for join, where in joins if id(join.outs[0]) in results}
        # What is used on the way is looked at here, unless that is inside a loop.
        used = [row for row in joins if row[1] not in differ and row[0] in body.ops]
        rough = max(self.limits, key=lambda limit: limit.norm)
        held = run.observe([join.ins[0] for join, _ in used])
        for (_, where), value in zip(used, held, strict=True):
            seen = not all(agree(row, value.first, rough) for row in value.rows)
            differ[where] = seen or differ.get(where, False)
        told = []
        for one in read:
            if one.code != "SW203" or one.where not in differ:
                told.append(one)
            elif not (known and differ[one.where]):
                told.append(came_out(one, differ[one.where], bool(self.wrong_on)))
        return told

    def _behind(
        self, hidden: Sequence[Hidden], rest: Sequence[Wrong]
    ) -> tuple[list[Finding], list[Wrong]]:
        """The causes that another result has, and does not show; and what no such cause explains.

        The loss is right with a bias that is zero, and the gradient of the bias is not.
        """
        found: list[Finding] = []
        explained: set[int] = set()
        for cause in hidden:
            seen = [(one, factors_of(one, rest, self.tried)) for one in rest]
            own = [one for one, seen in seen if cause.explains(one, seen)]
            own = [one for one in own if one.index not in explained]
            if own:
                explained |= {one.index for one in own}
                paths = tuple(one.path for one in own)
                more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
                message = (
                    f"{cause.finding.message}; {paths[0]}{more} is {own[0].times:.4g} times too "
                    "large, probably because of it"
                )
                told = dataclasses.replace(cause.finding, message=message, certain=True)
                found.append(dataclasses.replace(told, leaf=paths[0], likewise=paths[1:]))
        return found, [one for one in rest if one.index not in explained]


def _is_beyond_meaning(run: Run, wrong: Sequence[Wrong]) -> bool:
    """Whether results may be proved and wrong: by the end of a range, or by NaN."""
    if run.whole_numbers is not None or run.asks_for_nan:
        return True
    return all(one.not_finite or one.finite_alone for one in wrong)


def disagreement(mesh: str) -> Finding:
    """What is said where numbers differ and meaning says that they cannot."""
    return Finding(
        "SW410",
        f"the program is proved on {mesh}, for numbers without end, and yet they differ there: "
        "something overflows on the way, wraps around or is NaN. If nothing does, this is a bug in "
        "shardwise, and a report with the program would help",
        NOWHERE,
        certain=False,
        mesh=mesh,
    )


def _deadlock(error: DeadlockError, run: Run, mesh: AbstractMesh) -> Finding:
    op = run.stuck_at
    assert op is not None
    waits = next(c for b in op.bodies for c in walk(b.ops) if isinstance(c, Collective))
    head, *rest = str(error).split("\n  Remedy: ")
    return Finding(
        "SW301",
        head,
        waits.where,
        remedy=rest[0] if rest else "",
        mesh=words(mesh),
    )

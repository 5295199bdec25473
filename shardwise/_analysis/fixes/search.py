"""Find an edit that makes a wrong program right, and verify it before it is shown.

The original program on one device (or the reference) defines what is right. A candidate is
executed, traced on every mesh, and compared with that symbolically: `"proved"`. If no candidate can
be proved, the most promising ones are run on the same arguments instead: `"checked"`. From an edit
that makes more results right and none wrong, the search also continues, in turns with what else
there is to try: one patch can fix two mistakes, and a wrong turn does not end the search.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import _jax
from ..._base.doing import doing
from ..._base.errors import warn
from ..._engine.static import Static
from ..._meaning import Gap, at_most
from ..._mesh import AbstractMesh, one_device
from ..._program import Body, Join, Op, walk
from ..check import Examined, Finding, Verdict
from ..faults import FollowsSharding, place_of, split_silenced
from ..prove.reading import ReadProgram
from .arithmetic import ARITHMETIC
from .candidate import Candidate
from .edits import CATALOGUE, EditContext, WrongShape
from .gradients import GRADIENT_EDITS, keep_checks
from .led import fix_of, led
from .live import LoadedFile
from .program import WrongProgram, is_open, shape_of
from .rewrites import REWRITES
from .sends import SENDS
from .sites import Sources, sites_of, values_of
from .source import Source
from .specs import SPECS
from .statistics import STATISTICS
from .tried import Front, Tried

TRACE, FAILED, RUN, TERMS = 10, 0.6, 8, 50
"""Costs in analysed operations. Tracing a program costs `TRACE` of them besides its own; if that
fails, `FAILED` of the sum; compiling and running it, `RUN` times the sum. Following devices
separately costs one for every `TERMS` that it makes."""

START, COMPILED = 100, 5
"""The budget of a search is what the check spent in the same units: a constant, and for each
program that it compiled `COMPILED` times what tracing it costs. A count instead of a time limit, so
that every machine finds the same fix."""

FIRST = 0.75
"""The share of the budget after which candidates that cannot be decided by analysis are run."""

CLOSE, APART, LONG = 4, 0.35, 0.25
"""Candidates are followed with the devices kept apart until that has left `CLOSE` of them open, or
one at a cost of more than `LONG` of the budget: then two of the open ones are run next. `APART` is
the share of the budget that one may take; a candidate that makes a program right on one device,
where it was wrong, may take all of it."""

MISTAKES = 3
"""The largest number of mistakes in one program that are fixed."""


def fixed(
    examined: Examined,
    f: Callable[..., Any],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
) -> Verdict:
    """Return the verdict with a verified fix at the finding that it resolves, if one is found."""
    verdict = examined.verdict
    if verdict.ok or (reference is not None and not callable(reference)):
        return verdict
    doing("trying fixes")
    try:
        program = WrongProgram.of(examined, f, meshes, reference, options)
        search = Search(program, verdict.findings)
        fix_found = search.run()
    except Exception as error:  # fixes are optional: a bug here must not cost the verdict
        warn(
            f"shardwise could not look for a fix ({type(error).__name__}: {error}). This is a bug "
            "in shardwise: a report with the program would help.",
            RuntimeWarning,
        )
        return verdict
    if fix_found is None:
        return verdict
    candidate, evidence = fix_found
    fix = fix_of(candidate, evidence, search.names_of(candidate.source))
    findings, silenced = split_silenced(led(verdict.findings, candidate, fix), place_of(f))
    silenced = *verdict.silenced, *silenced  # by a comment at the line of the fix
    wrong_on = verdict.wrong_on if any(finding.certain for finding in findings) else ()
    return dataclasses.replace(verdict, findings=findings, silenced=silenced, wrong_on=wrong_on)


class Search:
    """The search for a fix of one program."""

    def __init__(
        self,
        program: WrongProgram,
        findings: Sequence[Finding],
        stand_in: WrongProgram | None = None,
    ):
        """`stand_in` is what was examined where the program itself cannot be traced."""
        self.program, self.findings = program, findings
        self.seen = stand_in or program
        self.sources = Sources()
        self.live: dict[str, LoadedFile] = {}
        self.body = program.examined.largest.body
        self.unit = _cost(self.body)
        self.spent, self.close, self.undecided = 0.0, CLOSE, False
        self.budget = START + sum(
            _cost(run.body) * (1 + COMPILED * run.compiled_variants)
            for run in program.examined.programs
        )
        self.whole = values_of(program.plain.body, self.sources)

    def run(self) -> tuple[Candidate, str] | None:
        """Return the first verified candidate, and how it was verified."""
        shown = Tried(_NOTHING, self._gaps_at_first(), self.seen.misshapen(self.body))
        same_results = self.seen.plain is self.program.plain
        now = shown if same_results else self._nothing_right(shown)
        open_ones: list[Tried] = []
        most = len(now.right)
        fronts = collections.deque([Front(now, iter(self.candidates(shown, None)))])
        while fronts and self.spent < self._limit(len(open_ones)):
            front = fronts.popleft()
            candidate = next(front.candidates, None)
            if candidate is None:
                if front.better is not None:
                    fronts.append(self._beyond(front, front.better))
                continue
            fronts.append(front)
            tried = self.attempt(candidate, front.now)
            if tried is None:
                continue
            if tried.is_right and self._is_proved(candidate, [self.program.hardest]):
                alone = candidate.alone
                return alone if alone and self._is_proved(alone) else candidate, "proved"
            if tried.is_open:
                open_ones.append(tried)
            elif front.mistakes < MISTAKES and tried.is_better(front.better or front.now):
                if len(tried.right) > most:
                    most = len(tried.right)
                    fronts.append(self._beyond(front, tried))
                else:
                    front.better = tried
        return self._settled(open_ones)

    def _limit(self, open_ones: int) -> float:
        """Return what may be spent before the candidates that are left open are run."""
        if self.undecided:
            return self.budget - RUN * self.unit * min(open_ones, 2)
        return (FIRST if open_ones else 1) * self.budget

    def _beyond(self, front: Front, tried: Tried) -> Front:
        """Return the search for a further mistake, in a program that a candidate has improved."""
        options = iter(self.candidates(tried, tried.candidate))
        return Front(tried, options, front.mistakes + 1)

    def _nothing_right(self, shown: Tried) -> Tried:
        """Return the state of a program that cannot be traced: no result is right."""
        results = range(len(self.program.plain.traced.result_paths))
        first = [gap for row in shown.gaps for gap in row][:1]
        return Tried(_NOTHING, [first for _ in results], frozenset(results))

    def _is_proved(self, candidate: Candidate, known: Sequence[AbstractMesh] = ()) -> bool:
        return bool(self._with(candidate, lambda f: self.program.proved(f, known)))

    def _gaps_at_first(self) -> list[list[Gap]]:
        program = self.seen
        gaps = program.examined.gaps
        if gaps is None:
            program_read = program.read(program.hardest, program.f, None)
            gaps = program_read.reading.gaps() if program_read else []
        return gaps

    def _settled(self, open_ones: Sequence[Tried]) -> tuple[Candidate, str] | None:
        """Return the first of some candidates whose numbers are right on every mesh."""
        likely = sorted(open_ones, key=lambda item: -len(item.right))
        for candidate in (item.candidate for item in likely):
            if self.spent + RUN * self.unit / 2 > self.budget:
                break
            self.spent += RUN * self.unit
            if self._with(candidate, self.program.agrees):
                if self._is_proved(candidate):
                    return candidate, "proved"
                if self._is_checked(candidate):
                    return candidate, "checked"
        return None

    def _is_checked(self, candidate: Candidate) -> bool:
        if self.program.right is None:  # must be evaluated before the program is edited
            return False
        return bool(self._with(candidate, self.program.checked))

    def candidates(self, now: Tried, best: Candidate | None) -> list[Candidate]:
        """Return what to try next, the most likely first; each extends the `best` edit so far."""
        candidates = [option for request in self._requests(now) for option in self._made(request)]
        candidates.sort(key=self._order)
        if best is not None:
            candidates = [best.joined(option) for option in candidates if _together(best, option)]
        unique: dict[str, Candidate] = {}
        for option in candidates:
            unique.setdefault(option.text, option)
        return [*unique.values()]

    def _made(self, request: EditContext) -> Iterator[Candidate]:
        """Yield all candidates for a file, without collectives outside every `shard_map`."""
        outside = request.sites.outside
        yield from (each for each in self._all(request) if not each.gaining_collectives & outside)

    def _all(self, request: EditContext) -> Iterator[Candidate]:
        """Yield all candidates for a file.

        With `check_vma=False`, a reduction inside a differentiated function has the wrong
        derivative: such edits are also tried with the check turned on.
        """
        checks = [*keep_checks(request)]
        yield from checks
        lines = self._differentiated(request.sites.source) if checks else set()
        for make in (
            *CATALOGUE,
            *GRADIENT_EDITS,
            *ARITHMETIC,
            *SPECS,
            *SENDS,
            *STATISTICS,
            *REWRITES,
        ):
            for option in make(request):
                differentiated = bool(lines) and lines >= option.lines
                if lines and all(_together(option, check) for check in checks):
                    combined = functools.reduce(Candidate.joined, checks, option)
                    rank = option.rank + (0 if differentiated else 1)
                    yield dataclasses.replace(combined, rank=rank, alone=option)
                yield dataclasses.replace(option, rank=option.rank + (1 if differentiated else 0))

    def _differentiated(self, source: Source) -> set[int]:
        """Return the lines of a file whose values are differentiated."""
        return {
            source.line_of(source.span(node)[0])
            for op in walk(self.body.ops)
            if op.differentiated
            for node_source, node in self.sources.expressions(op)
            if node_source is source
        }

    def _order(self, candidate: Candidate) -> tuple[float, float, int]:
        """Sort by likelihood; among equals those at the line of a finding, then small ones."""
        distance = self._distance(candidate)
        return candidate.rank + distance, distance, candidate.size

    def _distance(self, candidate: Candidate) -> float:
        """Rank edits by line: the first finding's, then those of other findings, then the rest."""
        file = candidate.source.file
        lines = [
            finding.where.line
            for finding in self.findings
            if finding.certain and finding.where.file == file
        ]
        if not lines or lines[0] in candidate.lines:
            return 0.0
        return 0.25 if candidate.lines & {*lines} else 1.25

    def _requests(self, now: Tried) -> Iterator[EditContext]:
        gaps, program = now.gaps, self.program
        flat = [gap for row in gaps for gap in row]
        ops = list(dict.fromkeys(op for gap in flat for op in _named(gap)))
        axis_names = [axis.name for gap in flat for axis in _axes(gap)]
        sizes = self.program.hardest.shape
        every = [name for name, size in sizes.items() if size > 1]
        owed = tuple(dict.fromkeys(axis_names))
        axes = dict.fromkeys([owed] if owed else [])
        axes |= dict.fromkeys((name,) for name in (*owed, *every))
        axes |= dict.fromkeys([tuple(every)] if every else [])
        ratios = [float(gap.ratio) for gap in flat if gap.kind == "times" and gap.ratio is not None]
        outs = self.body.outs
        wrong = [out for out, row in zip(outs, gaps, strict=False) if row] or outs
        for sites in sites_of(self.body, wrong, ops, self.sources, self.whole):
            yield EditContext(
                sites,
                self.names_of(sites.source),
                list(axes),
                ratio=ratios[0] if ratios else program.factor,
                shares=self._shares(flat, sites.source),
                unsummed=any(op.backward for op in ops),
                unchecked=any(
                    isinstance(op, Join) and not op.checked for op in walk(self.body.ops)
                ),
                is_open=is_open(gaps),
                sizes=sizes,
                misplaced=any(gap.kind in ("moved", "first") for gap in flat),
                returned=any(
                    gap.kind == "first" or isinstance(getattr(gap.mistake, "op", None), Join)
                    for gap in flat
                ),
                shapes=self._shapes(now),
                reference=self._reference(),
                is_wrong_alone=program.is_wrong_alone,
                draws=any(finding.code == FollowsSharding.code for finding in self.findings),
            )

    def _shares(self, gaps: Sequence[Gap], source: Source) -> list[ast.expr]:
        """Return the expressions of a file that compute a share which is used as the whole."""
        mistakes = [m.used or m for gap in gaps for m in gap.mistakes]
        born = dict.fromkeys(m.born for m in mistakes if m.born and not m.born.backward)
        nodes = [next(self.sources.expressions(op), None) for op in born]
        return list(dict.fromkeys(row[1] for row in nodes if row is not None and row[0] is source))

    def _shapes(self, now: Tried) -> list[WrongShape]:
        if now.candidate is not _NOTHING and self.seen is not self.program:
            return []  # they are not the results of what was examined
        plain = self.seen.plain
        paths, wanted = plain.traced.result_paths, plain.body.outs
        runs = [run for run in self.program.examined.runs if len(run.body.outs) == len(wanted)]
        return [
            WrongShape(
                paths[index],
                [(run.sizes, shape_of(run.body.outs[index])) for run in runs],
                shape_of(wanted[index]),
            )
            for index in sorted(now.misshapen)
        ]

    def _reference(self) -> list[tuple[Source, ast.expr]]:
        """Return the expressions of the reference, if there is one."""
        if self.program.reference is None:
            return []
        ops = walk(self.program.plain.body.ops)
        return list(dict.fromkeys(place for op in ops for place in self.sources.expressions(op)))

    def attempt(self, candidate: Candidate, now: Tried) -> Tried | None:
        """Try a candidate on the hardest mesh; None if it cannot be traced."""
        program = self.program

        def follow(edited: Any) -> Tried | None:
            wrong_alone = program.is_wrong_alone and program.hardest.size > 1
            alone = [(one_device(program.hardest), APART)] if wrong_alone else []
            tried = None
            for mesh, share in (*alone, (program.hardest, 1 if alone else APART)):
                read = program.read(mesh, edited, now.misshapen)
                if read is None:
                    return None
                tried = Tried(candidate, self._gaps(read, share), program.misshapen(read.body))
                if not tried.is_right:
                    break
            return tried

        tried = self._with(candidate, follow)
        self.spent += self.unit * (1 if tried else FAILED)
        return tried

    def _gaps(self, read: ReadProgram, share: float) -> list[list[Gap]]:
        """Return the gaps, with the devices followed separately where nothing else decides.

        That may take a share of the budget.
        """
        gaps = read.reading.gaps()
        if self.close and not self.undecided and is_open(gaps):
            allowed = int(share * self.budget * TERMS)
            with at_most(allowed) as left:
                gaps = self.program.apart(read, gaps)
            cost = (allowed - max(left.work, 0)) / TERMS
            self.spent += cost
            if is_open(gaps) and read.mesh.size > 1:
                self.close -= 1
                self.undecided = cost > LONG * self.budget
        return gaps

    def names_of(self, source: Source) -> collections.ChainMap[str, Any]:
        """Return the global names of a file."""
        return collections.ChainMap(*self.live_of(source).globals)

    def live_of(self, source: Source) -> LoadedFile:
        """Return the functions of a file."""
        if source.file not in self.live:
            self.live[source.file] = LoadedFile(source)
        return self.live[source.file]

    def _with(self, candidate: Candidate, ask: Callable[[Any], Any]) -> Any:
        """Call a function with the edited program; None if that raises an error."""
        live = self.live_of(candidate.source)
        try:
            # Nobody reads the error of a candidate: JAX need not shorten its traceback.
            with _jax.whole_tracebacks(), live.edited(candidate.edits) as replaced:
                return ask(replaced(self.program.f)) if replaced else None
        except Exception:  # an edit that breaks the program is not a fix
            return None


def _cost(body: Body) -> int:
    """Return what it costs to trace and analyse a program."""
    return TRACE + sum(1 for _ in walk(body.ops))


def _together(one: Candidate, other: Candidate) -> bool:
    return one.source is other.source and not one.overlaps(other)


_NOTHING: Any = None


def _named(gap: Gap) -> Iterator[Op]:
    """Yield the operations that the evidence names, starting with where the mistake was made."""
    mistakes = [m for m in (gap.mistake, *gap.mistakes) if m is not None]
    for mistake in mistakes:
        origin = mistake.used or mistake
        yield from (
            op for op in (origin.born, origin.maker, origin.op, mistake.op) if op is not None
        )
    yield from (step.op for step in reversed(gap.steps))
    if gap.stray is not None:
        yield gap.stray


def _axes(gap: Gap) -> Iterator[Any]:
    yield from gap.axes
    if gap.mistake is not None:
        yield from gap.mistake.axes
    yield from (step.axis for step in gap.steps if step.axis is not None)

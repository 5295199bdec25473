"""Find an edit that makes a wrong program right, and verify it before anyone sees it.

The original program on one device (or the reference) says what is right. A candidate is executed,
traced on every mesh, and its meaning compared with that: `"proved"`. Where no candidate can be
proved, the most promising ones are run on the same arguments instead: `"checked"`. An edit that
makes some results right and none wrong is kept, and the search goes on from there, so that two
mistakes in one program are fixed by one patch.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from .. import _jax
from .._check import Finding, Fix, Verdict, examine
from .._doing import doing
from .._errors import warn
from .._meaning import Gap
from .._mesh import AbstractMesh, one_device
from .._program import Op
from .._prove.reading import ReadProgram
from .._simulate import simulate
from .._static import Static
from .._tracing import Tracing
from .candidate import Candidate, import_edit
from .edits import CATALOGUE, Request
from .live import Live
from .rewrites import REWRITES
from .sites import Sources, sites_of
from .source import Source, shown_path, unified_diff

MOST = 48
"""How many candidates are tried: a number and not a time, so that any machine finds the same."""

OPERATIONS = 8_000
"""How many operations of edited programs are followed in all; a long program has fewer tries."""

OPEN = 12
"""After how many candidates that can be neither proved nor refuted the search ends."""

MISTAKES = 3
"""How many mistakes in one program are looked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A wrong program, and what it should be."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    meshes: Sequence[AbstractMesh]
    options: tuple[Any, Static]
    plain: ReadProgram
    """What is right: the original program on one device, or the reference."""
    right: Callable[..., Any] | None
    """The same as a function, if it can be evaluated while the program is edited."""

    def read(self, mesh: AbstractMesh) -> ReadProgram:
        """Trace the program as it is now, and follow its values."""
        return ReadProgram.of(Tracing(self.f, mesh, *self.options), mesh, self.args, self.plain)

    def gaps(self, mesh: AbstractMesh) -> list[list[Gap]] | None:
        """Return where each result differs from what it should be; None if it may deadlock.

        Devices are followed one by one only where nothing else says that the program is wrong.
        """
        found = self.read(mesh)
        if found.sites or found.traced.tree != self.plain.traced.tree:
            return None
        gaps = found.reading.gaps()
        return [row.gaps for row in found.compared(self.plain)] if _is_open(gaps) else gaps


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """A candidate on the mesh that shows the most."""

    candidate: Candidate
    gaps: list[list[Gap]]

    @property
    def right(self) -> frozenset[int]:
        """Return the results that are proved."""
        return frozenset(index for index, gaps in enumerate(self.gaps) if not gaps)

    @property
    def mistakes(self) -> int:
        """Count the operations on shares that are left."""
        return len({id(one.op) for gaps in self.gaps for gap in gaps for one in gap.mistakes})

    def is_better(self, other: Tried) -> bool:
        """Whether more results are right, or fewer operations wrong, and none got worse."""
        if not self.right >= other.right or self.is_open:
            return False
        return self.right > other.right or 0 < self.mistakes < other.mistakes

    @property
    def is_open(self) -> bool:
        """Whether nothing says that the candidate is wrong."""
        return _is_open(self.gaps)


def _is_open(found: list[list[Gap]]) -> bool:
    return any(found) and all(gap.kind == "other" for gaps in found for gap in gaps)


def program_of(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
) -> Program:
    """Return the program with what it should be, read before anything is edited."""
    ones = one_device(meshes[0])
    in_specs, static = options
    options = Tracing(f, ones, in_specs, static).lying(args), static
    if reference is None:
        plain = Tracing(f, ones, *options)
    else:
        plain = Tracing(reference, None, static=static, alone=True)
    read = ReadProgram.of(plain, ones, args)
    return Program(f, args, meshes, options, read, reference or _frozen(f, ones, args))


def _frozen(f: Callable[..., Any], ones: AbstractMesh, args: tuple[Any, ...]) -> Any:
    """Return a program on one device as a function that later edits do not reach."""
    try:
        traced, shape = jax.make_jaxpr(simulate(f, mesh=ones), return_shape=True)(*args)
    except Exception:  # objects, static arguments: numbers are then not compared
        return None
    tree = jax.tree.structure(shape)

    def original(*args: Any) -> Any:
        outs = _jax.evaluate(traced, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(tree, outs)

    return original


def fixed(
    verdict: Verdict,
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    options: tuple[Any, Static],
) -> Verdict:
    """Return the verdict with a verified fix at the finding that it resolves, if there is one."""
    if verdict.ok or (reference is not None and not callable(reference)):
        return verdict
    doing("trying fixes")
    try:
        search = Search(program_of(f, args, meshes, reference, options), verdict.findings)
        found = search.run()
    except Exception as error:  # a fix is an extra: a bug in the search must not cost the verdict
        warn(
            f"shardwise could not look for a fix ({type(error).__name__}: {error}). This is a bug "
            "in shardwise: a report with the program would help.",
            RuntimeWarning,
        )
        return verdict
    if found is None:
        return verdict
    candidate, how = found
    return dataclasses.replace(
        verdict, findings=_led(verdict.findings, candidate, fix_of(candidate, how))
    )


def fix_of(candidate: Candidate, how: str) -> Fix:
    """Return a verified candidate as what the user sees."""
    source = candidate.source
    uses = any(re.search(r"\bjax\.", edit.text) for edit in candidate.edits)
    known = any("jax" in names for names in Live(source.file, source.text).globals)
    edits = [*candidate.edits, *([import_edit(source)] if uses and not known else [])]
    after = source.applied(edits)
    diff = unified_diff(shown_path(source.file), source.text, after)
    return Fix(diff, candidate.description, how, source.file, source.text, after)


def _led(findings: Sequence[Finding], candidate: Candidate, fix: Fix) -> tuple[Finding, ...]:
    """Return the findings with the one that the fix resolves first, and the others behind it."""
    lines = [candidate.source.line_of(edit.start) for edit in candidate.edits]

    def distance(finding: Finding) -> tuple[bool, float]:
        here = finding.where.file == candidate.source.file
        return not finding.certain, min(
            abs(finding.where.line - line) for line in lines
        ) if here else 1e9

    first, *rest = sorted(findings, key=distance)
    others = [dataclasses.replace(one, remedy=AGAIN) if one.certain else one for one in rest]
    return (dataclasses.replace(first, fix=fix), *others)


AGAIN = "the fix above."


class Search:
    """The search for a fix of one program."""

    def __init__(self, program: Program, findings: Sequence[Finding]):
        self.program, self.findings = program, findings
        self.sources = Sources()
        self.hardest = program.meshes[-1]
        self.live: dict[str, Live] = {}
        self.tried = 0
        self.most = min(MOST, OPERATIONS // max(1, program.plain.operations))

    def run(self) -> tuple[Candidate, str] | None:
        """Return the first candidate that is verified, and how it was."""
        now = Tried(_NOTHING, self.program.gaps(self.hardest) or [])
        best: Candidate | None = None
        open_ones: list[Candidate] = []
        for _ in range(MISTAKES):
            better: Tried | None = None
            for candidate in self.candidates(now.gaps, best):
                if self.is_over:
                    break
                tried = self.attempt(candidate)
                if tried is None:
                    continue
                if len(tried.right) == len(tried.gaps) and self.proved(candidate):
                    return candidate, "proved"
                if tried.is_open:
                    open_ones.append(candidate)
                    if len(open_ones) == OPEN:
                        break
                elif tried.is_better(better or now):
                    better = tried
            if better is None or self.is_over:
                break
            best, now = better.candidate, better
        checked = (one for one in open_ones[:3] if self.checked(one))
        found = next(checked, None)
        return None if found is None else (found, "checked")

    @property
    def is_over(self) -> bool:
        """Whether enough was tried."""
        return self.tried >= self.most

    def candidates(self, gaps: list[list[Gap]], best: Candidate | None) -> list[Candidate]:
        """Return what to try next, the most likely first; each goes on from the `best` so far."""
        found = [
            one
            for request in self._requests(gaps)
            for make in (*CATALOGUE, *REWRITES)
            for one in make(request)
        ]
        found.sort(key=lambda one: (one.rank + self._distance(one), one.size))
        if best is not None:
            found = [best.joined(one) for one in found if self._together(best, one)]
        return list({one.text: one for one in reversed(found)}.values())[::-1]

    def _distance(self, candidate: Candidate) -> float:
        """Rank edits at the line of a finding before others."""
        file = candidate.source.file
        named = {one.where.line for one in self.findings if one.certain and one.where.file == file}
        lines = {candidate.source.line_of(edit.start) for edit in candidate.edits}
        return 0.0 if lines & named or not named else 1.0

    def _together(self, best: Candidate, one: Candidate) -> bool:
        return best.source is one.source and not best.overlaps(one)

    def _requests(self, gaps: list[list[Gap]]) -> Iterator[Request]:
        flat = [gap for own in gaps for gap in own]
        ops = list(dict.fromkeys(op for gap in flat for op in _named(gap)))
        named = [axis.name for gap in flat for axis in _axes(gap)]
        sizes = self.hardest.shape
        every = [name for name, size in sizes.items() if size > 1]
        owed = tuple(dict.fromkeys(named))
        axes = dict.fromkeys([owed] if owed else [])
        axes |= dict.fromkeys((name,) for name in (*owed, *every))
        axes |= dict.fromkeys([tuple(every)] if every else [])
        ratios = [float(gap.ratio) for gap in flat if gap.kind == "times" and gap.ratio is not None]
        body = self.program.read(self.hardest).body
        for sites in sites_of(body, ops, self.sources):
            names = collections.ChainMap(*self.live_of(sites.source).globals)
            yield Request(
                sites,
                names,
                list(axes),
                ratio=ratios[0] if ratios else None,
                misplaced=any(gap.kind in ("moved", "first") for gap in flat),
            )

    def attempt(self, candidate: Candidate) -> Tried | None:
        """Try a candidate on the mesh that shows the most; None where it cannot be traced."""
        self.tried += 1
        found = self._with(candidate, lambda: self.program.gaps(self.hardest))
        return None if found is None else Tried(candidate, found)

    def proved(self, candidate: Candidate) -> bool:
        """Whether every result is proved on every mesh, one device included."""
        others = [one_device(self.hardest), *self.program.meshes[:-1]]

        def right() -> bool:
            return all(self.program.gaps(mesh) == [[]] * self._count() for mesh in others)

        return bool(self._with(candidate, right))

    def _count(self) -> int:
        return len(self.program.plain.traced.result_paths)

    def checked(self, candidate: Candidate) -> bool:
        """Whether the numbers are right on every mesh."""
        program = self.program
        if program.right is None:
            return False

        def right() -> bool:
            given = program.args, program.meshes, program.right, program.options
            found = examine(program.f, *given)
            return found.verdict.ok and not found.verdict.limited

        return bool(self._with(candidate, right))

    def live_of(self, source: Source) -> Live:
        """Return the functions of a file."""
        if source.file not in self.live:
            self.live[source.file] = Live(source.file, source.text)
        return self.live[source.file]

    def _with(self, candidate: Candidate, ask: Callable[[], Any]) -> Any:
        """Ask something of the edited program; None where it cannot be traced."""
        live = self.live_of(candidate.source)
        try:
            with live.edited(candidate.text) as changed:
                return ask() if changed else None
        except Exception:  # whatever an edit does to a program, it is then no fix of it
            return None


_NOTHING: Any = None


def _named(gap: Gap) -> Iterator[Op]:
    """Yield the operations that the evidence names, where the mistake was made first."""
    mistakes = [one for one in (gap.mistake, *gap.mistakes) if one is not None]
    for mistake in mistakes:
        used = mistake.used or mistake
        yield from (op for op in (used.born, used.maker, used.op, mistake.op) if op is not None)
    yield from (step.op for step in reversed(gap.steps))
    if gap.stray is not None:
        yield gap.stray


def _axes(gap: Gap) -> Iterator[Any]:
    yield from gap.axes
    if gap.mistake is not None:
        yield from gap.mistake.axes
    yield from (step.axis for step in gap.steps if step.axis is not None)

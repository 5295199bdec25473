"""`shardwise explain`: the communication, memory and cost of the cases of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._base.doing import telling
from .._base.errors import ShardwiseError
from . import files, options
from .cases import LocatedCase, find_cases, program_of
from .report import CaseOutcome, full_text
from .running import console, path_as_it_was
from .status import ExitCode

if TYPE_CHECKING:
    from .._analysis.explain import Report

Mesh = Mapping[str, int]

Platform = Literal["cpu", "cuda", "h100"]

MACHINE = "h200-node"
"""The default machine of a trace."""


def explain(
    targets: options.Targets = None,
    mesh: Annotated[
        str | None,
        options.mesh_option("The mesh: data=8,model=2. By default the case's own, or its largest."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="AXIS=SIZE,...|OLD.json",
            help="A second mesh, or an earlier report (--format json): what changes.",
        ),
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=MOST,...",
            help="Fail where more is sent or held: bytes_sent=1e6, bytes_sent.data=1e6, "
            "peak_memory=8e9, all_gather=0. By default, expect of [tool.shardwise].",
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Read the collectives off the compiled program, or never. By default, where the "
            "compiler decides what is sent.",
            show_default=False,
        ),
    ] = None,
    platform: Annotated[
        Platform,
        typer.Option(
            help="What to compile for: virtual CPU devices; virtual GPUs like the one of this "
            "machine; virtual H100s, without a GPU. The last two need JAX's CUDA plugin.",
        ),
    ] = "cpu",
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The machine to estimate seconds for: h100-node, h200-node, h200-network, "
            "tpu-v5e, tpu-v5p.",
        ),
    ] = None,
    output: options.ReportFormat = options.Printed.TEXT,
    page: Annotated[Path | None, options.page("Write a page with pictures.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a trace.json for ui.perfetto.dev."),
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Compile with other shardings of arguments; show those that send less.",
        ),
    ] = False,
    devices: options.Devices = None,
) -> None:
    """Show what programs send, hold and cost on a mesh of any size. Runs nothing.

    Programs that the compiler partitions are compiled for virtual devices. The exit code is 1 where
    a bound of --expect is exceeded.

    Takes the cases of shardwise check: functions decorated with @sw.case(mesh=...) that return
    (f, args). With @sw.case(..., explain=large) it takes what large() returns instead.
    """
    sizes = None if mesh is None else options.one_mesh(mesh)
    old = Path(against) if against is not None and against.endswith(".json") else None
    other_mesh = None if against is None or old else options.one_mesh(against, "--against")
    files.refuse_unwritable(page, "--html")
    files.refuse_unwritable(trace, "--trace")
    named, settings = options.prepare(targets, devices)
    machine = hardware or settings.hardware or (MACHINE if trace is not None else None)
    bounds = parse_bounds(expect) if expect else dict(settings.expect)
    compiling = "auto" if compile is None else compile
    chosen = ExplainOptions(sizes, other_mesh, machine, compiling, old, bounds, suggest, platform)
    with path_as_it_was(), contextlib.redirect_stdout(sys.stderr):
        with telling("importing"):
            cases = find_cases(named)
        one_case_for_files("explain", cases, page, trace)
        arguments = {"--mesh": mesh, "--against": against, "--hardware": hardware, "--html": page}
        arguments["--expect"] = ",".join(expect) if expect else None
        command = _command(targets or [], {**arguments, "--trace": trace, "--devices": devices})
        outcomes = [_explain(case, chosen, command, judged=page is not None) for case in cases]
    if output is options.Printed.JSON:
        typer.echo(json.dumps([outcome.to_dict() for outcome in outcomes], indent=2))
    else:
        for outcome in outcomes:
            outcome.show()
    for outcome in outcomes:
        if outcome.report is not None:
            _write(outcome.report, page, trace)
    failed = any(outcome.report is None for outcome in outcomes)
    over = any(outcome.excesses for outcome in outcomes)
    code = ExitCode.NOT_RUN if failed else ExitCode.WRONG if over else ExitCode.OK
    raise typer.Exit(code)


def one_case_for_files(verb: str, cases: Sequence[LocatedCase], *paths: Path | None) -> None:
    """Raise if several cases would be written into one file."""
    if len(cases) > 1 and any(paths):
        names = ", ".join(case.name for case in cases)
        raise ShardwiseError(
            f"there are {len(cases)} cases: {names}",
            where=str(next(path for path in paths if path)),
            rule="A file has one case.",
            remedy=f"name it: shardwise {verb} {cases[0].name}",
        )


@dataclasses.dataclass(frozen=True)
class ExplainOptions:
    """The options for each case."""

    mesh: Mesh | None
    against: Mesh | None
    machine: str | None
    compile: bool | Literal["auto"]
    old: Path | None
    bounds: Mapping[str, Any]
    suggest: bool
    platform: Platform


def parse_bounds(texts: Sequence[str]) -> dict[str, Any]:
    """Return the bounds of `--expect bytes_sent.data=1e6,all_gather=0`."""
    bounds: dict[str, Any] = {}
    for part in (part for text in texts for part in text.split(",")):
        name, equals, number = part.strip().partition("=")
        figure, dot, axis = name.partition(".")
        most = _number(number)
        if most is None or not equals or not figure or (dot and not axis):
            raise ShardwiseError(
                f"{part.strip()!r} is no bound",
                where="--expect",
                rule="A bound is a figure and the most it may be.",
                remedy="--expect bytes_sent.data=1e6,all_gather=0",
            )
        if axis:
            bounds.setdefault(figure, {})[axis] = most
        else:
            bounds[figure] = most
    return bounds


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True)
class Explained:
    """A case with its report and optionally a second one, or with an error."""

    outcome: CaseOutcome
    report: Report | None = None
    beside: Report | None = None
    changes: Any = None
    """The changes since an earlier report, if requested."""
    excesses: Sequence[Any] = ()
    """The bounds that are exceeded."""

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain data."""
        case = {key: value for key, value in self.outcome.to_dict().items() if key != "verdict"}
        data = {**case, "report": self.report.to_dict() if self.report else None}
        if self.report and self.beside:
            data["comparison"] = self.report.compare(self.beside).to_dict()
        if self.changes is not None:
            data["changes"] = self.changes.to_dict()
        data["exceeded"] = [str(excess) for excess in self.excesses]
        return data

    def show(self) -> None:
        """Print the report, the comparison or the changes as text."""
        if self.report is None:
            console().print(full_text(self.outcome, verbose=False))
        elif self.beside is not None:
            typer.echo(self.report.compare(self.beside))
        elif self.changes is not None:
            typer.echo(f"{self.outcome.entry.name}: {self.changes}")
        else:
            from .._analysis.explain import show

            show(self.report)
        for excess in self.excesses:
            console().print(f"OVER BUDGET: {excess}", style="red", markup=False, highlight=False)


def _command(targets: Sequence[str], arguments: Mapping[str, Any]) -> str:
    """Return the command line."""
    parts = [
        part for name, value in arguments.items() if value is not None for part in (name, value)
    ]
    return shlex.join(["shardwise", "explain", *targets, *map(str, parts)])


def _explain(entry: LocatedCase, chosen: ExplainOptions, command: str, judged: bool) -> Explained:
    if entry.case is None:
        return Explained(CaseOutcome(entry, error=entry.error))
    with telling(f"explaining {entry.name}"):
        try:
            return _explained(entry, chosen, command, judged)
        except (Exception, SystemExit) as error:
            return Explained(CaseOutcome(entry, error=error))


def _explained(entry: LocatedCase, chosen: ExplainOptions, command: str, judged: bool) -> Explained:
    from .._analysis.explain import changes_since, excesses

    assert entry.case is not None
    f, args = program_of(entry.case, entry.case.explain)
    specs = entry.case.options.get("in_specs")
    mesh = chosen.mesh or entry.case.explain_mesh or dict(entry.case.meshes(f, args)[-1].shape)
    first = dataclasses.replace(_report(f, args, mesh, chosen, specs), command=command)
    over = excesses(first, chosen.bounds)
    changes = None if chosen.old is None else changes_since(chosen.old, first)
    if judged:
        first = _judged(first, f, args, mesh)
    second = None if chosen.against is None else _report(f, args, chosen.against, chosen, specs)
    return Explained(CaseOutcome(entry), first, second, changes, over)


def _report(
    f: Any, args: Sequence[Any], mesh: Mesh, chosen: ExplainOptions, in_specs: Any
) -> Report:
    from .._analysis.explain import explain as run
    from .._mesh import mesh as make_mesh

    return run(
        f,
        *args,
        mesh=make_mesh(mesh),
        in_specs=in_specs,
        hardware=chosen.machine,
        compile=chosen.compile,
        suggest=chosen.suggest,
        platform=chosen.platform,
    )


def _judged(report: Report, f: Any, args: Sequence[Any], mesh: Mesh) -> Report:
    """Return the report with the findings of a proof, or unchanged if that fails."""
    from .._analysis.prove import prove
    from .._mesh import mesh as make_mesh

    try:
        return report.beside(prove(f, *args, mesh=make_mesh(mesh), run=False))
    except Exception:  # the report itself is complete
        return report


def _write(report: Report, page: Path | None, trace: Path | None) -> None:
    """Write the requested files."""
    from .._analysis.explain import save_page, save_trace

    if page is not None:
        save_page(report, page)
        files.say_written(page)
    if trace is not None:
        save_trace(report, trace)
        files.say_written(trace)

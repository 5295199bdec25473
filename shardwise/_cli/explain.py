"""`shardwise explain`: the communication, memory and cost of the cases of a file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._base.errors import ShardwiseError
from . import files, options
from .cases import program_of
from .report import CaseOutcome, full_text
from .running import attempt, console, import_cases, one_case_for_files, path_as_it_was
from .status import ExitCode

if TYPE_CHECKING:
    from .._analysis.check import Case
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
    bounds = parse_bounds(expect) if expect else dict(settings.expect)
    arguments = {"--mesh": mesh, "--against": against, "--hardware": hardware, "--html": page}
    arguments["--expect"] = ",".join(expect) if expect else None
    command = _command(targets or [], {**arguments, "--trace": trace, "--devices": devices})
    chosen = {
        "hardware": hardware or settings.hardware or (MACHINE if trace is not None else None),
        "compile": "auto" if compile is None else compile,
        "suggest": suggest,
        "platform": platform,
    }

    def explained(case: Case) -> Explained:
        from .._analysis.explain import changes_since, excesses
        from .._analysis.explain import explain as run
        from .._mesh import mesh as make_mesh

        f, args = program_of(case, case.explain)
        specs = case.options.get("in_specs")

        def report_on(mesh: Mesh) -> Report:
            return run(f, *args, mesh=make_mesh(mesh), in_specs=specs, **chosen)

        on = sizes or case.explain_mesh or dict(case.meshes(f, args)[-1].shape)
        report = dataclasses.replace(report_on(on), command=command)
        return Explained(
            report if page is None else _judged(report, f, args, on),
            None if other_mesh is None else report_on(other_mesh),
            None if old is None else changes_since(old, report),
            excesses(report, bounds),
        )

    with path_as_it_was():
        cases = import_cases(named)
        one_case_for_files("explain", cases, page, trace)
        outcomes = [attempt(case, f"explaining {case.name}", explained) for case in cases]
    if output is options.Printed.JSON:
        typer.echo(json.dumps([_data(*entry) for entry in outcomes], indent=2))
    else:
        for outcome, found in outcomes:
            _show(outcome, found)
    for _, found in outcomes:
        if found is not None:
            _write(found.report, page, trace)
    failed = any(found is None for _, found in outcomes)
    over = any(found.excesses for _, found in outcomes if found is not None)
    raise typer.Exit(ExitCode.NOT_RUN if failed else ExitCode.WRONG if over else ExitCode.OK)


@dataclasses.dataclass(frozen=True)
class Explained:
    """The report of a case."""

    report: Report
    beside: Report | None
    """The report on a second mesh."""
    changes: Any
    """The changes since an earlier report, if requested."""
    excesses: Sequence[Any]
    """The bounds that are exceeded."""


def _data(outcome: CaseOutcome, found: Explained | None) -> dict[str, Any]:
    case = {key: value for key, value in outcome.to_dict().items() if key != "verdict"}
    if found is None:
        return {**case, "report": None, "exceeded": []}
    data = {**case, "report": found.report.to_dict()}
    if found.beside is not None:
        data["comparison"] = found.report.compare(found.beside).to_dict()
    if found.changes is not None:
        data["changes"] = found.changes.to_dict()
    return {**data, "exceeded": [str(excess) for excess in found.excesses]}


def _show(outcome: CaseOutcome, found: Explained | None) -> None:
    """Print the report, the comparison or the changes as text."""
    if found is None:
        console().print(full_text(outcome, verbose=False))
        return
    if found.beside is not None:
        typer.echo(found.report.compare(found.beside))
    elif found.changes is not None:
        typer.echo(f"{outcome.entry.name}: {found.changes}")
    else:
        from .._analysis.explain import show

        show(found.report)
    for excess in found.excesses:
        console().print(f"OVER BUDGET: {excess}", style="red", markup=False, highlight=False)


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


def _command(targets: Sequence[str], arguments: Mapping[str, Any]) -> str:
    """Return the command line."""
    parts = [
        part for name, value in arguments.items() if value is not None for part in (name, value)
    ]
    return shlex.join(["shardwise", "explain", *targets, *map(str, parts)])


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

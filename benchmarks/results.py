"""RESULTS.md, written from `results.json` and `reasons.toml`.

    make bench ARGS=--write          # measure, keep the ratios in results.json, write RESULTS.md
    python benchmarks/results.py     # write RESULTS.md again, after an edit of reasons.toml

`results.json` has the latest ratios of each script and kind of device, with machine, date and
command. `reasons.toml` has a short paragraph for each target that was missed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import report

HERE = Path(__file__).parent
DATA, REASONS, PAGE = HERE / "results.json", HERE / "reasons.toml", HERE / "RESULTS.md"

INTRODUCTION = """\
# Benchmark results

Written by `make bench ARGS=--write`; each script can be run by itself. A ratio compares two forms \
of one program that were measured in turn in one run, so it says more than a time does. \
Temporaries are XLA's own figure, resident memory is the peak of the process.
"""


@dataclass(frozen=True)
class Run:
    """The ratios that one run of a script printed.

    Attributes:
        script: The name of the script.
        device: `"CPU"`, or the name of the GPU.
        machine: Date, versions and cores.
        command: What was run.
        targets: The ratios.
    """

    script: str
    device: str
    machine: str
    command: str
    targets: tuple[report.Target, ...]


def read() -> list[Run]:
    """Return the runs in `results.json`."""
    found = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []
    return [
        Run(**{**run, "targets": tuple(report.Target(**target) for target in run["targets"])})
        for run in found
    ]


def keep(new: Iterable[Run]) -> None:
    """Replace the runs of the same scripts and devices, and write the page."""
    runs = {(run.device, run.script): run for run in [*read(), *new]}
    kept = [asdict(runs[key]) for key in sorted(runs)]
    DATA.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    write()


def page() -> str:
    """Return the text of RESULTS.md."""
    runs, reasons = read(), tomllib.loads(REASONS.read_text(encoding="utf-8"))
    parts = [INTRODUCTION, "<!-- --8<-- [start:tables] -->"]
    for device in sorted({run.device for run in runs}):
        here = [run for run in runs if run.device == device]
        rows = [(run, target) for run in here for target in run.targets]
        missed = [(run, target) for run, target in rows if not target.reached]
        parts.append(f"## {device}\n")
        parts.append(f"{len(rows) - len(missed)} of {len(rows)} targets reached.\n")
        parts += [f"- {line}" for line in _machines(here)] + [""]
        header = ["script", "ratio", "measured", "target", "verdict"]
        parts.append(report.table(header, [[run.script, *target.row()] for run, target in rows]))
        parts.append("")
        parts += [_missed(run, target, reasons) for run, target in missed]
    parts.append("<!-- --8<-- [end:tables] -->\n")
    return "\n".join(parts)


def _machines(runs: list[Run]) -> list[str]:
    """Where and when the scripts ran, one line for each machine and day."""
    scripts: dict[str, list[str]] = {}
    for run in runs:
        scripts.setdefault(run.machine, []).append(f"`{run.command}`")
    return [f"{machine}: {', '.join(commands)}." for machine, commands in scripts.items()]


def _missed(run: Run, target: report.Target, reasons: dict[str, dict[str, str]]) -> str:
    why = reasons.get(run.script, {}).get(target.what, "The reason is not known.")
    return f"**{run.script}: {target.what}**, {report.ratio(target.value)}. {why.strip()}\n"


def write() -> None:
    """Write RESULTS.md."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()

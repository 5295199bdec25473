"""Every ratio with its target and verdict, for the machine this runs on.

    make bench                       # in a quarter of an hour on two idle cores
    make bench ARGS=--quick          # in two: smaller sizes, which say less
    make bench ARGS="--only train"   # the scripts whose names contain it
    make bench ARGS=--write          # and write RESULTS.md (see results.py)

Each script of this folder runs in a separate process and prints its tables; the ratios of all are
printed together at the end. What depends on the clock is only as good as the machine is idle. A
script that fails, or takes more than its time, is named and makes the exit status 1; a target that
is not reached does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import report
import results

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Script:
    """A benchmark: its arguments in full and in short, and how long the latter and former may take.

    `quick` is None for one that is left out where it is to be quick.
    """

    name: str
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    seconds: int = 300


ON_HOST = (
    Script("simulate", ("--rounds", "2", "--bare"), None),
    Script("transformer", ("--rounds", "2"), ("--size", "tiny", "--rounds", "5")),
    Script("convnet", ("--rounds", "2"), ("--size", "tiny", "--rounds", "5")),
    Script("gallery", ("--rounds", "0"), ("--rounds", "0", "zero", "tensor_parallel")),
    Script("check", (), ("--size", "tiny")),
    Script("prove", ("--unrolled", "8", "126"), None),
    Script("tracing", (), ("--quick",)),
    Script("evaluate", ("--count", "10000000"),
           ("--rows", "40000", "--rounds", "2", "--steps", "200", "--count", "1000000")),
    Script("train", ("--rounds", "5"), None),
    Script("train_small", (), ("--rounds", "60")),
    Script("at_rest", (), None),
    Script("hosts", (), None),
    Script("scaling", (), None),
    Script("explain_public", (), None, 600),
)  # fmt: skip

ON_GPU = (
    Script("simulate_gpu", ("--rounds", "10"), None, 240),
    Script("transformer", ("--size", "large"), ("--size", "medium", "--rounds", "3"), 240),
    Script("evaluate_gpu", ("--skip-chosen",), ("--bus-only", "--gib", "4")),
    Script("train", ("--gpu", "--rounds", "8"), None, 300),
)


def run(script: Script, quick: bool, verdicts: Path) -> str:
    """Run a script; return its failure, or nothing."""
    arguments = script.quick if quick else script.full
    assert arguments is not None
    command = [sys.executable, str(HERE / f"{script.name}.py"), *arguments]
    print(f"\n=== {script.name} {' '.join(arguments)}\n", flush=True)
    try:
        made = subprocess.run(
            command, env=os.environ | {report.KEPT: str(verdicts)}, timeout=script.seconds
        )
    except subprocess.TimeoutExpired:
        return f"was ended after {script.seconds} s"
    return f"failed with exit status {made.returncode}" if made.returncode else ""


def read(verdicts: Path) -> list[report.Target]:
    if not verdicts.exists():
        return []
    return [report.Target(**json.loads(line)) for line in verdicts.read_text().splitlines()]


def device() -> tuple[str, str]:
    """`"CPU"` or the name of the GPU, and JAX's version, from a process that ends: this one must
    hold no device."""
    question = "import jax; d = jax.devices()[0]; print(d.platform, jax.__version__, d.device_kind)"
    asked = [sys.executable, "-c", question]
    found = subprocess.run(asked, check=True, capture_output=True, text=True)
    platform, version, kind = found.stdout.strip().split(" ", 2)
    return (kind if platform == "gpu" else "CPU"), version


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, in two minutes")
    parser.add_argument("--only", metavar="NAME", help="scripts whose names contain this")
    parser.add_argument("--write", action="store_true", help="keep the ratios in RESULTS.md")
    asked = parser.parse_args()
    if asked.write and asked.quick:
        parser.error("--write keeps the ratios of the full sizes: leave out --quick")
    kind, version = device()
    scripts = [
        script
        for script in (ON_HOST if kind == "CPU" else ON_GPU)
        if (not asked.quick or script.quick is not None) and (asked.only or "") in script.name
    ]
    if not scripts:
        parser.error(f"no script has {asked.only!r} in its name")
    began = time.monotonic()
    where = report.machine("", version)
    runs, failed, took = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for script in scripts:
            verdicts, started = Path(folder) / script.name, time.monotonic()
            if trouble := run(script, asked.quick, verdicts):
                failed.append(f"{script.name} {trouble}")
            command = " ".join([f"benchmarks/{script.name}.py", *script.full])
            runs.append(results.Run(script.name, kind, where, command, tuple(read(verdicts))))
            took.append(f"{script.name} {time.monotonic() - started:.0f}")
    rows = [[run.script, *target.row()] for run in runs for target in run.targets]
    reached = sum(row[-1] == "reached" for row in rows)
    print("\n=== all ratios\n")
    print(report.table(["script", "ratio", "measured", "target", "verdict"], rows))
    print(f"\n{reached} of {len(rows)} reached, in {time.monotonic() - began:.0f} s")
    print(f"seconds each: {', '.join(took)}")
    if asked.write:
        results.keep(run for run in runs if run.targets)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()

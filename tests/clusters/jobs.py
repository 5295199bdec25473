"""The jobs that run under every scheduler, and what they give on one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "tests" / "hosts" / "jobs"
LIMIT = 300.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a job: this checkout, on CPU."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "SHARDWISE"))}
    own = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    return {**kept, **own, **more}


def run(command: Sequence[object], **env: str) -> str:
    """Run a command within the time limit; its output, and an error if it failed."""
    done = subprocess.run(
        [*map(str, command)], env=environment(**env), text=True, timeout=LIMIT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if done.returncode:
        what = " ".join(map(str, command))
        raise SystemExit(f"{what}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def check(name: str, prefix: Sequence[object], processes: int, **env: str) -> None:
    """Evaluate and train under a scheduler, and compare with one process.

    Args:
        name: The scheduler, as `sw.connect()` names it.
        prefix: What starts as many processes of the command that follows it.
        processes: How many that are.
        env: What it needs in the environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        alone, here = Path(folder, "alone"), Path(folder, "here")
        alone.mkdir()
        here.mkdir()
        flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        python = sys.executable
        run([python, JOBS / "evaluating.py", alone], **flags)
        said = run([*prefix, python, JOBS / "evaluating.py", here], **env, **flags)
        wanted = json.loads((alone / "result-1-0.json").read_text())
        for k in range(processes):
            found = json.loads((here / f"result-{processes}-{k}.json").read_text())
            assert found == wanted, f"process {k} has other bits"
        assert f"process 0 of {processes} ({name})" in said, said
        print(f"{name}: evaluate on {processes} processes of 2 devices: the bits of one process")
        fit = [*prefix, python, JOBS / "fitting.py", here, 12]
        said = run(fit, **env)
        first = re.findall(r"final \d (\w+) 12", said)
        again = re.findall(r"final \d (\w+) 12", run(fit, **env))
        assert len(first) == len(again) == processes, said
        assert len({*first, *again}) == 1, (first, again)
        rows = (here / "checkpoints" / "log.jsonl").read_text().splitlines()
        assert len(rows) == 12, rows
        print(f"{name}: fit on {processes} processes, resumed from its checkpoint: the same bits")

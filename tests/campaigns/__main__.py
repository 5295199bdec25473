"""Campaigns against what is kept on disk.

    python -m tests.campaigns damage --count 500 --seed 0
    python -m tests.campaigns places --count 500
    python -m tests.campaigns kill --count 500
    python -m tests.campaigns signal --count 100
    python -m tests.campaigns damage --count 500 --jobs 15      in 15 processes with a seed each

`damage` flips bits, cuts files short and deletes them; `places` renames, copies and swaps them, and
takes files of other runs and of earlier times, and rights; `kill` is kill -9 at random moments;
`signal` is SIGINT and SIGTERM in every phase. The last lines are a table for the documentation.
The exit code is 1 if anything was silent, raw, lost or different.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from . import damage, interrupt, kill, places, work

CAMPAIGNS = {
    "damage": damage.campaign,
    "places": places.campaign,
    "kill": kill.campaign,
    "signal": interrupt.campaign,
}


def table(counts: dict[str, dict[str, int]]) -> str:
    """Markdown: a row for each site, a column for each outcome."""
    columns = list(dict.fromkeys(name for found in counts.values() for name in found))
    rows = [[name, *(str(found.get(c, 0)) for c in columns)] for name, found in counts.items()]
    total = [str(sum(found.get(c, 0) for found in counts.values())) for c in columns]
    lines = [["", *columns], ["---", *("---:" for _ in columns)], *rows, ["all", *total]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shared(arguments: list[str], count: int, seed: int, jobs: int) -> dict[str, Any]:
    """Do a campaign in several processes; later options take the place of earlier ones."""
    running = []
    for k in range(jobs):
        part = count // jobs + (k < count % jobs)
        more = ["--jobs", "1", "--json", "--count", str(part), "--seed", str(seed * 1000 + k)]
        command = [sys.executable, "-m", "tests.campaigns", *arguments, *more]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    counts: dict[str, Counter[str]] = {}
    bad = []
    for process in running:
        lines = process.communicate()[0].splitlines()
        try:
            found = json.loads(lines[-1])
        except (IndexError, ValueError):
            bad.append(f"a process ended with {process.returncode} and no counts")
            continue
        bad += found["bad"]
        for name, part in found["counts"].items():
            counts.setdefault(name, Counter()).update(part)
    return {"counts": {name: dict(part) for name, part in counts.items()}, "bad": bad}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=work.KINDS, default=work.KINDS)
    parser.add_argument("--quiet", action="store_true", help="Say only what it came to.")
    parser.add_argument("--jobs", type=int, default=1, help="Processes to share the trials.")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    began = time.monotonic()

    def say(line: str) -> None:
        if not asked.quiet and not asked.json:
            print(line, flush=True)

    if asked.jobs > 1:
        found = shared(arguments, asked.count, asked.seed, asked.jobs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run: Any = CAMPAIGNS[asked.campaign]
            found = run(asked.count, asked.seed, Path(folder), say, tuple(asked.kinds))
    if asked.json:
        print(json.dumps(found))
        return 0
    print(f"\n{asked.count} trials, seed {asked.seed}, {time.monotonic() - began:.0f} s\n")
    print(table(found["counts"]))
    for line in found["bad"]:
        print(f"BAD {line}")
    return 1 if found["bad"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

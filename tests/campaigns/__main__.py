"""Campaigns against what is kept on disk.

    python -m tests.campaigns damage --count 500 --seed 0
    python -m tests.campaigns places --count 500
    python -m tests.campaigns kill --count 500
    python -m tests.campaigns signal --count 100

`damage` flips bits, cuts files short and deletes them; `places` renames, copies and swaps them, and
takes files of other runs and of earlier times, and rights; `kill` is kill -9 at random moments;
`signal` is SIGINT and SIGTERM in every phase. The last lines are a table for the documentation.
The exit code is 1 if anything was silent, raw, lost or different.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=work.KINDS, default=work.KINDS)
    parser.add_argument("--quiet", action="store_true", help="Say only what it came to.")
    asked = parser.parse_args(arguments)
    began = time.monotonic()

    def say(line: str) -> None:
        if not asked.quiet:
            print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        run: Any = CAMPAIGNS[asked.campaign]
        found = run(asked.count, asked.seed, Path(folder), say, tuple(asked.kinds))
    print(f"\n{asked.count} trials, seed {asked.seed}, {time.monotonic() - began:.0f} s\n")
    print(table(found["counts"]))
    for line in found["bad"]:
        print(f"BAD {line}")
    return 1 if found["bad"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

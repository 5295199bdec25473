"""Count the right programs that are proved: `python -m tests.meaning.idioms [PART OF A NAME ...]`.

For each program "proved", "proved against itself" (on one device, but not against its plain
reference), "unknown" or "refuted"; "WRONG" where its results on real virtual devices are not the
expected ones. At the end, the sums. `--proofs` runs nothing, `--devices` proves nothing, `-v`
prints the proofs of what is not proved.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from tests.devices import request_devices

OPTIONS = ("--proofs", "--devices", "-v")


def main(argv: Sequence[str]) -> int:
    """Print the figures; 1 if a program is refuted or wrong."""
    request_devices()
    from . import idioms
    from .judge import ITSELF, differences, judged

    parts = [part for part in argv if part not in OPTIONS]
    chosen = [one for one in idioms() if not parts or any(part in str(one) for part in parts)]
    sums: dict[str, Counter[str]] = {"production": Counter(), "harder": Counter()}
    for idiom in chosen:
        status, proof = ("", None) if "--devices" in argv else judged(idiom)
        wrong = [] if "--proofs" in argv else differences(idiom)
        sums[idiom.level].update({"all": 1, status: 1, "WRONG": int(bool(wrong))})
        print(f"{idiom.level:10} {idiom!s:62} {status}{' WRONG' * bool(wrong)}", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)
        if "-v" in argv and proof is not None and status != "proved":
            print("    " + str(proof).replace("\n", "\n    "), flush=True)
    for level, row in sums.items():
        proved = row["proved"] + row[ITSELF]
        print(
            f"{level}: {proved} of {row['all']} proved, {row[ITSELF]} of them only against itself; "
            f"{row['unknown']} unknown, {row['refuted']} refuted, {row['WRONG']} wrong on devices"
        )
    return int(any(row["refuted"] or row["WRONG"] for row in sums.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

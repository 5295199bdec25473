"""What `prove` says of right programs, in numbers: `python -m tests.meaning.idioms [PART OF A NAME ...]`.

For each program "proved", "unknown" or "REFUTED", and "WRONG" where its results on real virtual
devices are not those of one device or of its reference; at the end, the sums. `--proofs` runs
nothing, `--devices` proves nothing, `-v` prints the proofs of what is not proved.
"""  # noqa: E501

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.devices import request_devices

OPTIONS = ("--proofs", "--devices", "-v")


def main(argv: Sequence[str]) -> int:
    """Print the figures; 1 if a program is refuted or wrong."""
    request_devices()
    from . import idioms
    from .judge import differences, proved

    parts = [part for part in argv if part not in OPTIONS]
    sums: Counter[tuple[str, str]] = Counter()
    for idiom in idioms():
        if parts and not any(part in str(idiom) for part in parts):
            continue
        began = time.monotonic()
        proof = None if "--devices" in argv else proved(idiom)
        seconds = time.monotonic() - began
        status = {None: "", "refuted": "REFUTED"}.get(
            proof and proof.status, proof and proof.status
        )
        wrong = [] if "--proofs" in argv else differences(idiom)
        sums.update({(idiom.level, word): 1 for word in ("all", status, "WRONG" if wrong else "")})
        against = "a reference" if idiom.reference else "itself"
        said = f"{idiom.level:10} {idiom!s:62} {status:8} {'WRONG' if wrong else ''}"
        print(f"{said} against {against}, {seconds:.1f} s", flush=True)
        for line in wrong:
            print(f"    {line}", flush=True)
        if "-v" in argv and proof is not None and proof.status != "proved":
            print("    " + str(proof).replace("\n", "\n    "), flush=True)
    for level in ("production", "harder"):
        row = {word: sums[level, word] for word in ("proved", "unknown", "REFUTED", "WRONG")}
        told = ", ".join(f"{count} {word}" for word, count in row.items())
        print(f"{level}: {row['proved']} of {sums[level, 'all']} proved ({told})")
    return int(any(word in ("REFUTED", "WRONG") for _, word in sums))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

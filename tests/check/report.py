"""How often check is right about the corpus: `python -m tests.check.report`."""

from __future__ import annotations

import collections
import sys

from tests.devices import request_devices


def main() -> int:
    """Print the figures; 1 if any of them is less than perfect."""
    request_devices()
    from .corpus import KINDS, pairs
    from .judge import judge

    total: collections.Counter[str] = collections.Counter()
    print(f"{'':12} {'programs':>8} {'faulted':>8} {'reason':>8} {'line':>8} {'false alarms':>13}")
    for kind in KINDS:
        found = [judge(pair) for pair in pairs() if pair.kind == kind]
        row = {
            "programs": len(found),
            "faulted": sum(one.faulted for one in found),
            "reason": sum(one.named for one in found),
            "line": sum(one.on_line for one in found),
            "alarms": sum(not one.right.ok for one in found),
            "findings": sum(f.certain for one in found for f in one.wrong.findings),
            "astray": sum(len(one.astray) for one in found),
        }
        total.update(row)
        _print(kind, row)
        for one in found:
            if not (one.faulted and one.named and one.on_line and one.right.ok):
                print(f"  {one.pair}: marked {sorted(one.pair.lines)}")
                if "-v" in sys.argv:
                    print("    " + str(one.wrong).replace("\n", "\n    "))
                    if not one.right.ok:
                        print("    RIGHT: " + str(one.right).replace("\n", "\n    "))
    _print("all", total)
    wrong, right = total["findings"], total["programs"]
    alarms, astray = total["alarms"], total["astray"]
    print()
    print(f"recall, wrong programs faulted:              {total['faulted']}/{right}")
    print(f"recall, on the right line:                   {total['line']}/{right}")
    print(f"precision, faulted programs that are wrong:  {right}/{right + alarms}")
    print(f"precision, findings on the right line:       {wrong - astray}/{wrong}")
    return int(total["line"] < right or alarms > 0)


def _print(name: str, row: dict[str, int]) -> None:
    cells = [row[column] for column in ("programs", "faulted", "reason", "line")]
    print(f"{name:12} " + " ".join(f"{c:8}" for c in cells) + f" {row['alarms']:13}")


if __name__ == "__main__":
    sys.exit(main())

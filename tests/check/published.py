"""What `prove` and `check` say of published silent bugs and of their right twins, as a table.

python -m tests.check.published
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import shardwise as sw

from .corpus import pairs


def rows() -> list[tuple[str, str, str, str, str]]:
    """For each: what it is, of the right one, of the wrong one, by which code, on the line."""
    found = []
    for pair in pairs():
        if pair.kind != "published":
            continue
        args = pair.args()
        right = sw.prove(pair.right, *args, mesh=pair.mesh)
        wrong = sw.prove(pair.wrong, *args, mesh=pair.mesh)
        verdict = sw.check(pair.wrong, *args, mesh=pair.mesh)
        first = next(finding for finding in verdict.findings if finding.certain)
        line = "yes" if first.where.line in pair.lines else "no"
        found.append((pair.mistake, right.status, wrong.status, first.code, line))
    return found


def table() -> str:
    """The rows as Markdown."""
    head = "| the bug | right twin | wrong one | first finding of `check` | at its line |"
    lines = [f"| {' | '.join(row)} |" for row in rows()]
    return "\n".join([head, "|---|---|---|---|---|", *lines])


if __name__ == "__main__":
    print(table())

"""Every program of the conformance table can be explained, and its report holds together."""

from __future__ import annotations

import json

import pytest

import shardwise as sw

from ..conformance.table import Row, Spmd, rows

FIRST = list({row.program.name: row for row in reversed(list(rows()))}.values())


@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.program.name)
def test_the_report_holds_together(row: Row):
    each = row.program

    def bound(*args, mesh):
        return each.around(lambda *args: each.run(Spmd(mesh, row.check_vma), *args))(*args)

    with each.setting():
        report = sw.explain(bound, *each.args(row.sizes), mesh=sw.mesh(**row.sizes))
    assert json.dumps(report.on("tpu-v5e").to_dict(), allow_nan=False)
    assert str(report)
    assert sum(step.flops for step in report.steps) == pytest.approx(report.work.flops)
    assert 0 <= report.work.redundant <= report.work.total
    counted = [use for use in report.collectives if use.counted]
    assert sum(use.total_bytes for use in counted) == report.bytes_sent
    assert sum(live.bytes for live in report.memory.live) + report.memory.rest == report.memory.peak
    assert report.memory.peak >= report.memory.arguments
    assert all(use.where.file for use in report.collectives)
    assert not any("what the values mean is not known" in note for note in report.notes)
    assert 0 <= report.redundant_bytes <= report.bytes_sent
    assert sum(one.bytes for one in report.savings if not one.memory) == report.redundant_bytes

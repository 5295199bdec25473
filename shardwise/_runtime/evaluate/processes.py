"""The part of one process in an evaluation by several processes.

Before the first step, the processes compare data, function and state, agree on the batch, and
exchange which steps are done. While steps are computed, nothing is sent. After the last, they
exchange their totals: sums are exact, so they can be merged; steps of metric objects of other
libraries are sent one by one and merged in order, as on one process.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..._base.errors import ShardwiseError
from ..hosts import others
from .fingerprint import differences
from .lanes import Lanes
from .reduce.plan import MetricsPlan
from .reduce.totals import Total
from .spans import Span, computed_twice, cut, join


class Share:
    """The steps of this process; all steps if there is only one process.

    Args:
        lanes: The devices.
        indexed: Whether all processes have the same numbered examples; otherwise each has its own,
            from an iterable.
    """

    def __init__(self, lanes: Lanes, indexed: bool) -> None:
        self._lanes, self._indexed = lanes, indexed
        self.shared = lanes.processes > 1
        self.elsewhere: list[Span] = []

    @property
    def index(self) -> int:
        return others.index() if self.shared else 0

    @property
    def count(self) -> int:
        return self._lanes.processes

    def check(self) -> None:
        """Raise if another process has failed."""
        if self.shared:
            others.news().check()

    def agree_on_batch(self, batch: int | None, recorded: int | None, choose: Any) -> int:
        """Return the batch of all processes: the argument, or that of a journal, or the least
        chosen.

        Args:
            batch: The argument `batch`.
            recorded: The batch in the journal of this process.
            choose: A function that chooses the batch of this process.
        """
        if not self.shared:
            return batch or recorded or choose()
        requests = others.gather([batch, recorded], "batch")
        if any(request[0] != batch for request in requests):
            listed = ", ".join(str(request[0]) for request in requests)
            raise _differ(f"the processes have batch = {listed}.")
        batch = batch or next((request[1] for request in requests if request[1]), None)
        return batch or min(others.gather(choose(), "batch"))

    def least(self, batch: int) -> int:
        """Return the least batch of all processes."""
        return min(others.gather(batch, "batch")) if self.shared else batch

    def identify(self, fingerprint: dict[str, str]) -> dict[str, str]:
        """Return the fingerprint of the run; raise if another process runs something else."""
        if not self.shared:
            return fingerprint
        if not self._indexed:
            fingerprint = {
                **fingerprint,
                "the number of processes": str(self.count),
                "the process": str(self.index),
            }
        facts = {k: v for k, v in fingerprint.items() if self._indexed or not _is_local(k)}
        first = others.spread(facts, "fingerprint")
        mismatches = others.gather(differences(first, facts, "process 0", "this one"), "same")
        for number, lines in enumerate(mismatches):
            if lines:
                raise _differ(f"process {number} runs another evaluation: {lines[0]}.")
        return fingerprint

    def deal(self, done: list[Span], length: int | None, batch: int) -> None:
        """Set `elsewhere` to the steps that other processes have done or will do.

        Each process gets consecutive steps, so that it reads a contiguous part of the data.
        """
        if not self.shared or not self._indexed:
            return
        gathered = others.gather([[s.start, s.rows] for s in done], "done")
        spans = [[Span(*pair) for pair in pairs] for pairs in gathered]
        _refuse_overlap(spans)
        finished = [span for part in spans for span in part]
        elsewhere = [span for k, part in enumerate(spans) if k != self.index for span in part]
        steps = sum(1 for _ in cut(finished, length, batch))
        total, before = self._lanes.total, self._lanes.before
        start, stop = steps * before // total, steps * (before + len(self._lanes)) // total
        remaining = cut(finished, length, batch)
        for number, span in enumerate(remaining):
            if not start <= number < stop:
                join(elsewhere, span)
        self.elsewhere = elsewhere

    def merge(
        self, plan: MetricsPlan, totals: dict[str, Total], count: int, resumed: int,
        notes: list[str],
    ) -> tuple[dict[str, Total], int, int, list[str]]:  # fmt: skip
        """Return the totals of all processes, on all of them.

        Args:
            plan: The metrics.
            totals: The totals of this process.
            count: The number of its examples.
            resumed: The number of its examples from a journal.
            notes: Its notes.
        """
        local = {
            "totals": {name: total.export() for name, total in totals.items()},
            "count": count,
            "resumed": resumed,
            "notes": notes,
        }
        reports = others.gather(local, "totals")
        merged, offset = plan.totals(), 0
        for report in reports:
            for name, total in merged.items():
                total.absorb(report["totals"][name], 0 if self._indexed else offset)
            offset += report["count"]
        notes = list(dict.fromkeys(note for report in reports for note in report["notes"]))
        return merged, offset, sum(report["resumed"] for report in reports), notes


def _is_local(key: str) -> bool:
    """Return whether a key differs between processes with different data."""
    return "content of data" in key or key == "the process"


def _refuse_overlap(parts: list[list[Span]]) -> None:
    spans = sorted(span for part in parts for span in part)
    for first, second in itertools.pairwise(spans):
        if first.stop > second.start:
            raise computed_twice(second, "the journals of the processes")


def _differ(what: str) -> ShardwiseError:
    return ShardwiseError(
        what,
        where="sw.evaluate on several processes",
        rule="All processes evaluate the same function and state on the same data; only iterables "
        "may differ.",
        remedy="load the same data and the same checkpoint, with the same seeds, everywhere.",
    )

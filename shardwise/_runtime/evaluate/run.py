"""`evaluate`: from a function, a state and data to an `Evaluation`.

A run is a list of steps of `batch` examples, numbered from the start of the data, without those in
the journal. They do not depend on the devices. `_Run` streams them through the compiled step, adds
the outputs to the totals and writes them to the journal. If the device runs out of memory, the
remaining examples are split into steps of half the size.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import jax

from ..._base.calls import DEVICES, public
from ..._base.durable import Signals, listen
from ..._base.errors import (
    ShardwiseError,
)
from ..._base.progress import Progress, Snapshot, choose_view
from ..._jax.failures import is_out_of_memory
from ..hosts import others
from .arguments import check_batch, check_function, names_of, open_data
from .data.source import DataSource
from .data.stream import Unread
from .fingerprint import fingerprint
from .journal.journals import Journals
from .lanes import Lanes, find_lanes
from .processes import Share
from .reduce.plan import MetricsPlan
from .reduce.totals import ObjectTotal, Total
from .result import Evaluation
from .spans import Span, cut, join
from .step.memory import choose_batch, largest_useful, too_large
from .step.program import Compiled, Function, bind, compile_step, plan
from .step.rounds import Rounds
from .step.state import place


@public(
    "sw.evaluate",
    devices=DEVICES,
    params="what the function needs is the second argument: sw.evaluate(fn, params, data)",
    model="what the function needs is the second argument: sw.evaluate(fn, model, data)",
    metrics="the function returns the metrics, as a dict of per-example values.",
)
def evaluate(
    fn: Callable[..., Any],
    state: Any,
    data: Any,
    *,
    batch: int | None = None,
    mesh: Any = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[Snapshot], Any] | None = None,
) -> Evaluation:
    """Evaluate a function over a data set of any size: exactly, streamed, resumable.

    For one `batch` the result has the same bits on any number of devices and processes, whole or
    resumed. After `sw.connect()` all processes call it with the same arguments; each reads and
    computes its own part of the data, and all return the same result. SIGINT (Ctrl-C) and SIGTERM
    end it after the steps in flight, which are recorded first.

    Args:
        fn: `fn(state, batch)` returns per-example values `[batch]` (their mean is taken), a pair
            `(values, weights)`, `sw.Mean`, `sw.Sum`, `sw.Min` or `sw.Max` of those, a metric object
            with `merge` and `compute`, or a dict of any of these. A parameter `mask` gets a boolean
            array that is false for padding.
        state: The first argument of `fn`: any pytree, Linen variables or an `nnx.Module`, which is
            passed in evaluation mode. It is placed on the devices once.
        data: A pytree of arrays of one length (NumPy, `np.memmap`, zarr, h5py, jax), a dataset with
            `__len__` and `__getitem__`, or an iterable of batches. Of several processes all have
            the same arrays or dataset, while each iterable yields its own batches.
        batch: Examples per step on each device. By default chosen to fit, and halved if the device
            runs out of memory.
        mesh: The devices, by default all devices of all processes: a real mesh, or a virtual one
            (`sw.mesh(data=8)`, `{"data": 8}`). Steps are distributed along the axis `data`, or the
            first. With a mesh of local devices only this process takes part.
        journal: A file that records finished steps. A run with the same journal resumes from there,
            also after a kill. Its rows are verified; damaged ones are reported and computed again.
            Of several processes each has its own file, in a folder that all share.
        progress: None or True shows a bar on a terminal and lines in a log, False nothing; a
            function is called with every snapshot.

    Returns:
        The value of every metric by name, with counts, weights and times.

    Raises:
        ShardwiseError: The data, the mesh or the output of `fn` is invalid, or the journal belongs
            to another run. Errors of `fn` and of the data are raised unchanged, with a note that
            names the step.

    Example:
        >>> import numpy as np, shardwise as sw
        >>> loss = lambda w, batch: (batch["x"] * w - batch["y"]) ** 2
        >>> x = np.arange(1000, dtype=np.float32)
        >>> result = sw.evaluate(loss, 2.0, {"x": x, "y": 2 * x + 1}, batch=64)
        >>> result["mean"]
        1.0
    """
    started = time.monotonic()
    check_function(fn)
    check_batch(batch)
    batch = None if batch is None else int(batch)
    with listen("evaluate") as signals, ExitStack() as stack:
        run = None
        try:
            with signals.at_once():
                lanes = find_lanes(mesh)
                if lanes.processes > 1:
                    stack.enter_context(others.together("sw.evaluate"))
                source = open_data(data, state)
                stack.callback(source.close)
                share = Share(lanes, indexed=source.length is not None)
                record = None
                if journal is not None:
                    record = stack.enter_context(Journals(journal, share))
                placed = place(state, lanes)
                stack.enter_context(jax.disable_jit(False))
                function = bind(fn, placed, source, lanes)
                run = _Run(function, source, lanes, record, share, signals)
                run.prepare(batch, report=progress is not False)
            run.compute(choose_view(progress, "evaluate") if share.index == 0 else None)
            return run.result(started)
        except BaseException as error:
            if signals.signum is None or isinstance(error, ShardwiseError):
                raise
            signals.end(f"evaluate: {signals.name}: {run.interrupted() if run else _NOT_STARTED}")


_NOT_STARTED = "ended before the first step. The same call starts again."


class _Run:
    """A running evaluation."""

    def __init__(
        self,
        function: Function,
        source: DataSource,
        lanes: Lanes,
        journal: Journals | None,
        share: Share,
        signals: Signals,
    ) -> None:
        self._function, self._source, self._lanes, self._journal = function, source, lanes, journal
        self._share, self._signals = share, signals
        self._plans: dict[int, MetricsPlan] = {}
        self._steps: dict[int, Compiled] = {}
        self._totals: dict[str, Total] = {}
        self._done: list[Span] = []
        self._notes: list[str] = []
        self._known: int | None = None  # the number of examples, if the journal has it
        self._count = self._resumed = self._batch = 0
        self._fixed = False

    def prepare(self, batch: int | None, report: bool) -> None:
        """Choose the batch and restore the steps in the journal; print a line if there are any."""
        journal, source, share = self._journal, self._source, self._share
        first = self._choose_batch(batch, {} if journal is None else journal.meta())
        self._totals = self._plan(first).totals(share.shared)
        if journal or share.shared:
            facts = fingerprint(self._function, self._plan(first), source, first, self._lanes)
            facts = share.identify(facts)
            if journal:
                journal.claim(facts, names_of(self._function.fn))
                self._restore(journal)
        share.deal(self._done, source.length, self._batch)
        if journal and report and self._resumed:
            message = f"{self._progress()} are in the journal {str(journal.path)!r}"
            print(f"evaluate: resumes: {message}", file=sys.stderr, flush=True)

    def _choose_batch(self, batch: int | None, recorded: dict[str, Any]) -> int:
        """Set the batch, and return the one that the run began with.

        Args:
            batch: The argument.
            recorded: The facts in the journal.
        """
        self._fixed = batch is not None
        self._source.retains = not self._fixed
        self._known = recorded.get("length")
        previous = int(recorded["fingerprint"]["batch"]) if recorded else None
        first = self._share.agree_on_batch(batch, previous, self._fitting_batch)
        if self._source.length is not None:
            first = min(first, self._source.length)
        self._batch = self._share.least(recorded.get("batch", first))
        if self._batch != first:
            self._notes.append(f"the journal's run had halved the batch from {first}")
        return first

    def _fitting_batch(self) -> int:
        """Return the natural batch of an iterable, or else the largest that fits."""
        if self._source.length is None:
            assert self._source.chunk is not None
            return self._source.chunk
        first = largest_useful(self._source.rows, self._source.length)
        return choose_batch(first, self._source.rows, self._lanes, self._step)

    def _restore(self, journal: Journals) -> None:
        length = self._known if self._source.length is None else self._source.length
        for span, batch, payload in journal.steps(length):
            self._add(span, batch, payload)
        self._resumed = self._count
        if journal.damaged:
            self._notes.append(f"{journal.damaged} damaged rows of the journal were computed again")

    def compute(self, view: Any) -> None:
        """Compute the remaining steps."""
        total = self._source.length
        if total is not None:
            total -= sum(span.rows for span in self._share.elsewhere)
        progress = Progress(view, total, self._resumed, self._running_sums)
        finished = False
        try:
            while not self._try_pass(progress):
                gc.collect()
            self._signals.check()
            finished = True
        finally:
            progress.close(finished)

    def _try_pass(self, progress: Progress) -> bool:
        """Compute the remaining steps; return False if a smaller batch has to be tried."""
        try:
            self._pass(progress)
        except Unread as unread:
            error = unread.error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self._fixed or self._batch == 1:
                raise too_large(self._batch, error) from error
            self._halve()
            return False
        else:
            return True
        raise error

    def _pass(self, progress: Progress) -> None:
        spans = cut([*self._done, *self._share.elsewhere], self._source.length, self._batch)
        first = next(spans, None)
        if first is None:
            return
        self._source.release(first.start)
        todo = itertools.chain([first], spans)
        with self._signals.at_once():
            step = self._step(self._batch)
        arrays = self._function.state.arrays
        rounds = Rounds(step, arrays, self._source, self._batch, self._lanes)
        with closing(rounds.run(todo, self._asked_to_end)) as steps:
            for span, payload in steps:
                self._share.check()
                if self._journal and self._known is not None and span.stop > self._known:
                    raise _other_length(self._journal, self._known, f"{span.stop} or more")
                self._add(span, self._batch, payload)
                if self._journal:
                    self._journal.add(span, self._batch, payload)
                progress.add(span.rows)

    def _asked_to_end(self) -> bool:
        return self._signals.signum is not None

    def _add(self, span: Span, batch: int, payload: bytes) -> None:
        records = self._plan(batch).layout.unpack(payload)
        for name, total in self._totals.items():
            total.add(records[name], span)
        self._count += span.rows
        join(self._done, span)

    def _halve(self) -> None:
        self._steps.pop(self._batch, None)
        self._notes.append(
            f"out of memory: the batch was halved from {self._batch} to {self._batch // 2} after "
            f"{self._count} examples; the bits of the result follow the batch"
        )
        self._batch //= 2
        if self._journal:
            self._journal.flush()
            self._journal.note(batch=self._batch)

    def _plan(self, batch: int) -> MetricsPlan:
        if batch not in self._plans:
            self._plans[batch] = plan(self._function, batch, self._source.length)
        return self._plans[batch]

    def _step(self, batch: int) -> Compiled:
        if batch not in self._steps:
            batch_plan = self._plan(batch)
            self._steps[batch] = compile_step(self._function, batch_plan, self._lanes, batch)
        return self._steps[batch]

    def result(self, began: float) -> Evaluation:
        """Merge the totals of all processes and return the evaluation."""
        if self._source.length is None and self._journal:
            self._settle_length(self._journal)
        if self._share.shared:
            self._totals, self._count, self._resumed, self._notes = self._share.merge(
                self._plan(self._batch), self._totals, self._count, self._resumed, self._notes
            )
        if self._source.length is not None and self._journal:
            self._settle_length(self._journal)
        totals = self._totals
        seconds = time.monotonic() - began
        weights = {name: total.weight() for name, total in totals.items()}
        nonfinite = {name: total.non_finite() for name, total in totals.items()}
        self._remark(nonfinite)
        return Evaluation(
            metrics=self._values(),
            count=self._count,
            weight={name: weight for name, weight in weights.items() if weight is not None},
            nonfinite={name: entry for name, entry in nonfinite.items() if entry is not None},
            seconds=seconds,
            examples_per_second=(self._count - self._resumed) / seconds,
            batch=self._batch,
            devices=self._lanes.mesh.devices.size // len(self._lanes) * self._lanes.total,
            processes=self._lanes.processes,
            resumed=self._resumed,
            notes=tuple(self._notes),
        )

    def _settle_length(self, journal: Journals) -> None:
        """Record the length of the data, which an iterable reveals at its end, in the journal."""
        length = self._source.final_length()
        if length is not None and length != self._count:
            raise _other_length(journal, self._count, str(length))
        journal.flush()
        journal.note(length=self._count)

    def _remark(self, bad: dict[str, Any]) -> None:
        """Add notes on metrics without weight and on values that lost digits."""
        for name, total in self._totals.items():
            if total.is_weightless() and not bad[name]:
                self._notes.append(f"{name}: every weight is zero, so it has no value")
        for label in sorted(self._source.rounded):
            self._notes.append(
                f"{label}: values of float64 lose digits as float32; "
                "jax.config.update('jax_enable_x64', True) keeps them"
            )

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, total in self._totals.items():
            values |= total.values(name)
        return values

    def _running_sums(self) -> dict[str, Any]:
        """Return the current values, without those of metric objects, which may take long."""
        totals = self._totals.items()
        return {n: t.values(n)[n] for n, t in totals if not isinstance(t, ObjectTotal)}

    def interrupted(self) -> str:
        """Flush the journal; return one line that reports it and how to resume."""
        if not self._journal:
            hint = "Nothing was recorded: journal=PATH (--journal PATH) records finished steps."
            return f"ended after {self._progress()}. {hint}"
        self._journal.flush()
        return (
            f"{self._progress()} are in the journal {str(self._journal.path)!r}. "
            "The same call resumes from there."
        )

    def _progress(self) -> str:
        length = self._known if self._source.length is None else self._source.length
        return f"{self._count}{'' if length is None else f' of {length}'} examples"


def _other_length(journal: Journals, recorded: int, length: str) -> ShardwiseError:
    return ShardwiseError(
        f"it has steps of {recorded} examples, the data of this run has {length}.",
        where=f"journal {str(journal.path)!r}",
        rule="Finished steps count only for the same data.",
        remedy="use another path, or delete the file to start over.",
    )

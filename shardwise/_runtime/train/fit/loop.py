"""The loop of `fit`: steps, fetching their metrics, checkpoints and evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...._base.durable import Signals
from ...._base.errors import ShardingError, ShardwiseError, a_type, warn
from ...._base.progress import Progress, Snapshot, choose_view, clock, metric_texts
from ...hosts import others
from .batches import Batches
from .checkpoint import Checkpoints
from .curves import draw_curves
from .log import Log, Row
from .processes import Team, report

LAG = 50
"""The most steps that may be in flight before their metrics are fetched."""

Evaluate = Callable[[Any], Mapping[str, Any]]
Callback = Callable[[Row], Any]


class TrainingLoop:
    """One call of `fit`: restores the newest checkpoint, trains, stores, evaluates, logs.

    Args:
        step: The step that `data_parallel` returned.
        state: The initial state.
        steps: The total number of steps.
        every: Store and evaluate after this many steps.
        evaluate: The evaluations, by name.
        callbacks: Functions that are called with every row.
        on_nan: What to do if the loss is not finite: `warn` or `raise`.
        progress: How to report progress; False for not at all.
        signals: The signals that end the loop.
        team: The processes that train together.
    """

    def __init__(
        self,
        step: Any,
        state: Any,
        *,
        steps: int,
        every: int,
        evaluate: Mapping[str, Evaluate],
        callbacks: Sequence[Callback],
        on_nan: str,
        progress: bool | Callable[[Snapshot], Any] | None,
        signals: Signals,
        team: Team,
    ) -> None:
        self.step, self.state, self.steps, self.every = step, state, steps, every
        self.evaluate, self.callbacks = evaluate, callbacks
        self.store: Checkpoints | None = None
        self.log: Log | None = None
        self.data: Batches | None = None
        self.done = 0
        self.shown: dict[str, float] = {}
        self._on_nan, self._progress = on_nan, progress
        self._signals, self._team = signals, team
        self._row: Row | None = None  # of the checkpoint, not evaluated yet
        self._resumed = self._stored = self._finished = 0
        self._pending: list[tuple[int, int, float, dict[str, Any]]] = []
        self._finite = True
        self._began = time.monotonic()

    def restore(self, batches: Any, folder: Path | None, keep: int, log: Path | None) -> None:
        """Restore state, data and log from the newest checkpoint, if there is one.

        Args:
            batches: The data.
            folder: The folder of the checkpoints.
            keep: How many of them to keep.
            log: The file of the log.
        """
        store = restored = None
        if folder is not None:
            store = self.store = self._team.open(folder, keep)
        data = self._team.batches(batches, self._progress)
        if store is not None:
            store.optimizer = self.step.optimizer_kinds(self.state)
            restored = self._team.resume(store, self.step.arrays(self.state))
        if restored is not None:
            self.state = self.step.restore(self.state, restored.arrays)
            self.done = self._resumed = self._stored = self._finished = restored.step
            self._row = restored.position.pop("row", None)
            self._report_position(restored.step)
            data.seek(restored.position, self._signals)
        if log is not None:
            logged = self.done if self._row is None else self.done - 1
            unstored, run = (0, "") if store is None else (self.every, store.run)
            self.log = Log(log, self.done, logged, disposable=unstored, run=run)
        elapsed = self.log.rows[-1]["seconds"] if self.log is not None and self.log.rows else 0.0
        self._began = time.monotonic() - elapsed
        self.data = data

    def _report_position(self, done: int) -> None:
        assert self.store is not None
        if done > self.steps:
            warn(
                f"the training in {self.store.folder} has {done:,} steps already, more than "
                f"{self.steps:,}",
            )
        elif self._progress is not False:
            verb = "resumes from" if done < self.steps else "is finished already, at"
            report(f"{verb} step {done:,} of {self.steps:,}, in {self.store.folder}")

    def train(self) -> None:
        """Run the remaining steps, until a signal ends the loop."""
        view = choose_view(self._progress, "fit")
        bar = Progress(view, self.steps, self.done, lambda: self.shown, unit="steps")
        finished = False
        try:
            self._catch_up()
            self._run(bar)
            finished = self.done >= self.steps
        finally:
            bar.close(finished)
            self.flush()

    def _run(self, bar: Progress) -> None:
        assert self.data is not None
        while self.done < self.steps and not self._team.asked_to_end(self._signals, self.done):
            batch = self.data.draw(self._signals)
            self.state, metrics = self.step.advance(self.state, batch)
            self.done += 1
            seconds = time.monotonic() - self._began
            self._pending.append((self.done, self.data.drawn, seconds, metrics))
            if self.done == self.steps or self.done % self.every == 0:
                self._finish(self._fetch())
            elif len(self._pending) >= LAG:
                self.flush()
                if self.store is not None and self._team.first:
                    self.store.watch()
            bar.add(self._newly_finished())

    def _newly_finished(self) -> int:
        """Return how many further steps the devices have finished: the host runs ahead of them."""
        previous = self._finished
        for number, _, _, metrics in self._pending:
            if number > self._finished:
                if not all(getattr(x, "is_ready", lambda: True)() for x in metrics.values()):
                    break
                self._finished = number
        if not self._pending:
            self._finished = self.done
        return self._finished - previous

    def _catch_up(self) -> None:
        """Evaluate and log the step of a checkpoint after which the training was killed."""
        logged = self.log.rows[-1]["step"] if self.log is not None and self.log.rows else 0
        if self._row is not None and self._team.decide(logged < self._row["step"]):
            self._write([self._row | self._evaluate()])

    def flush(self) -> None:
        """Fetch and log the metrics of the steps so far."""
        self._write(self._fetch())

    def leave(self) -> str:
        """Store what is finished; return one line that reports it and how to resume.

        If the data was interrupted in the middle of a batch, its position is unknown, and the state
        is not stored.
        """
        store, name = self.store, self._signals.name
        if self.data is not None:
            self.flush()
            if self.done != self._stored and not self.data.torn:
                self._store({})
        self.close()
        self._team.meet()
        if not self._team.first:
            return ""
        newest = None if store is None else store.newest
        if self.data is None or (store is not None and newest is None):
            action = "begins again" if newest is None else f"resumes from step {newest}"
            return f"fit: {name}: ended before a step was taken. The same call {action}."
        if store is None:
            rest = "Nothing is stored: checkpoint='FOLDER' keeps what is finished."
            return f"fit: {name}: ended after step {self.done:,} of {self.steps:,}. {rest}"
        repeated = self.done - (newest or 0)
        note = f"; {repeated} steps after it are done again" if repeated else ""
        return (
            f"fit: {name}: saved at step {newest:,} of {self.steps:,}, in {store.folder}{note}. "
            "The same call resumes from there."
        )

    def close(self) -> None:
        """Wait for a checkpoint that is being written, and release the folder."""
        if self.store is not None:
            self.store.close()

    def draw(self) -> None:
        """Draw the curves, once everything is stored."""
        if self.log is not None and self.log.rows:
            with self._signals.at_once():
                draw_curves(self.log.rows, self.log.path.with_name("curves.png"))

    def report_end(self) -> None:
        """Print a summary: steps, time, metrics, and the paths of the files."""
        if self._progress not in (None, True) or self.done <= self._resumed:
            return
        earlier = f" ({self._resumed:,} of them before)" if self._resumed else ""
        head = f"{self.done:,} steps{earlier} in {clock(time.monotonic() - self._began)}"
        paths = [] if self.store is None else [f"checkpoints in {self.store.folder}"]
        if self.log is not None:
            curves = self.log.path.with_name("curves.png")
            paths += [f"log {self.log.path}", *([f"curves {curves}"] if curves.exists() else [])]
        line = ", ".join([head, *metric_texts(self.shown, most=8)])
        report("; ".join([line, *paths]))

    def _store(self, more: dict[str, Any]) -> None:
        """Store the state and the position in the data; process 0 does, for all."""
        if self.store is None:
            return
        assert self.data is not None
        position = self._team.position(self.data) | more
        if self._team.first:
            self.store.save(self.done, self.step.arrays(self.state), position)
            others.report_progress()
        self._stored = self.done

    def _finish(self, rows: list[Row]) -> None:
        """Log, store, evaluate.

        The log has every step of the newest checkpoint except the last, whose row waits for its
        evaluation: that row is in the checkpoint.
        """
        *earlier, last = rows
        self._write(earlier)
        stored = False
        try:
            self._store({"row": last})
            stored = self._stored == self.done
            last = last | self._evaluate()
        except BaseException:
            if not stored:
                self._write([last])
            raise
        self._write([last])

    def _fetch(self) -> list[Row]:
        """Return the metrics of the steps so far, one row each."""
        pending, self._pending = self._pending, []
        fetched = jax.device_get([metrics for *_, metrics in pending])
        rows = []
        for (number, drawn, seconds, _), metrics in zip(pending, fetched, strict=True):
            values = {name: value.item() for name, value in metrics.items()}
            rows.append({"step": number, "seconds": round(seconds, 3), **values})
            self._check_loss(rows, drawn)
        return rows

    def _check_loss(self, rows: list[Row], drawn: int) -> None:
        """Warn or raise if the loss of the last row is not finite, or nothing was updated."""
        row = rows[-1]
        if not self._team.first and self._on_nan == "warn":
            return  # process 0 warns for all
        if not row["updated"]:
            warn(f"step {row['step']}: the weights add up to zero, nothing was updated")
        elif not math.isfinite(row["loss"]):
            if self._on_nan == "raise":
                self._write(rows)
                raise self._not_finite(row, drawn)
            if self._finite:
                warn(
                    f"step {row['step']}: the loss is {row['loss']} (batch {drawn} of the data); "
                    "the training continues. on_nan='raise' stops it there",
                )
            self._finite = False

    def _not_finite(self, row: Row, drawn: int) -> ShardwiseError:
        newest = self.store.newest if self.store is not None else None
        hint = f"The newest checkpoint, of step {newest}, is from before it." if newest else ""
        return ShardwiseError(
            f"the loss is {row['loss']}",
            where=f"step {row['step']}, batch {drawn} of the data",
            rule=f"on_nan='raise' stops a training there. {hint}".strip(),
            remedy="look at that batch; a smaller learning rate, or clipped gradients; "
            "on_nan='warn' continues.",
        )

    def _write(self, rows: list[Row]) -> None:
        if rows:
            self.shown = _metrics_of(self.shown | rows[-1])
            if self.log is not None:
                self.log.add(rows)
            for callback in self.callbacks:
                for row in rows:
                    callback(dict(row))

    def _evaluate(self) -> dict[str, float]:
        metrics = {}
        for name, function in self.evaluate.items():
            with self._signals.at_once():
                result = function(self.state)
            if not isinstance(result, Mapping):
                raise _no_numbers(name, f"it returned {a_type(result)}")
            for metric, value in result.items():
                if isinstance(value, str | Mapping) or value is None:
                    raise _no_numbers(name, f"its {metric!r} is {a_type(value)}")
                if np.ndim(value):
                    raise _no_numbers(name, f"its {metric!r} has shape {list(np.shape(value))}")
                metrics[f"{name}/{metric}"] = float(value)
        return metrics


def _metrics_of(row: Row) -> dict[str, Any]:
    """Return the metrics of a row: the loss, evaluated metrics, the others."""
    metrics = {k: v for k, v in row.items() if k not in ("step", "seconds", "weight", "updated")}
    return dict(sorted(metrics.items(), key=lambda item: (item[0] != "loss", "/" not in item[0])))


def _no_numbers(name: str, what: str) -> ShardingError:
    return ShardingError(
        what,
        where=f"evaluate function {name!r}",
        rule="It returns a mapping of names to numbers.",
        remedy="return sw.evaluate(...), or {'accuracy': 0.9}",
    )

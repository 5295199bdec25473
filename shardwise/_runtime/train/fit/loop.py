"""The loop of `fit`: steps, fetching their metrics, checkpoints and evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ...._base.durable import Signals
from ...._base.errors import ShardingError, ShardwiseError, a_type, warn
from ...._base.progress import Progress
from ...hosts import others
from .batches import Batches
from .checkpoint import Checkpoints
from .log import Log, Row
from .processes import Team

LAG = 50
"""The most steps that may be in flight before their metrics are fetched."""

Evaluate = Callable[[Any], Mapping[str, Any]]
Callback = Callable[[Row], Any]


class TrainingLoop:
    """A running training.

    Args:
        step: The step that `data_parallel` returned.
        state: The initial state.
        data: The batches.
        done: The number of steps taken before.
        evaluate: The evaluations, by name.
        callbacks: Functions that are called with every row.
        store: The checkpoints, if there are any.
        log: The log, if there is one.
        on_nan: What to do if the loss is not finite: `warn` or `raise`.
        signals: The signals that end the loop.
        team: The processes that train together.
    """

    def __init__(
        self,
        step: Any,
        state: Any,
        data: Batches,
        done: int,
        *,
        evaluate: Mapping[str, Evaluate],
        callbacks: Sequence[Callback],
        store: Checkpoints | None,
        log: Log | None,
        on_nan: str,
        signals: Signals,
        team: Team,
    ) -> None:
        self.step, self.state, self.data, self.done = step, state, data, done
        self.evaluate, self.callbacks, self.store, self.log = evaluate, callbacks, store, log
        self.shown: dict[str, float] = {}
        self._on_nan, self._signals, self._team = on_nan, signals, team
        self._stored = self._finished = done
        self._pending: list[tuple[int, int, float, dict[str, Any]]] = []
        self._finite = True
        elapsed = log.rows[-1]["seconds"] if log is not None and log.rows else 0.0
        self._began = time.monotonic() - elapsed

    def run(self, steps: int, every: int, bar: Progress) -> None:
        """Train up to a step, or until a signal."""
        while self.done < steps and not self.asked_to_end():
            batch = self.data.draw(self._signals)
            self.state, metrics = self.step.advance(self.state, batch)
            self.done += 1
            seconds = time.monotonic() - self._began
            self._pending.append((self.done, self.data.drawn, seconds, metrics))
            last = self.done == steps
            if last or self.done % every == 0:
                self._finish(self._fetch())
            elif len(self._pending) >= LAG:
                self.flush()
                if self.store is not None:
                    self.store.watch()
            bar.add(self._newly_finished())

    @property
    def seconds(self) -> float:
        """Seconds since the training began, those before an interruption included."""
        return time.monotonic() - self._began

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

    def asked_to_end(self) -> bool:
        """Return whether a signal asks to end after this step."""
        return self._team.asked_to_end(self._signals, self.done)

    def catch_up(self, row: Row | None) -> None:
        """Evaluate and log the step of a checkpoint after which the training was killed."""
        logged = self.log.rows[-1]["step"] if self.log is not None and self.log.rows else 0
        if row is not None and self._team.decide(logged < row["step"]):
            self._write([row | self._evaluate()])

    def flush(self) -> None:
        """Fetch and log the metrics of the steps so far."""
        self._write(self._fetch())

    def save_now(self) -> None:
        """Store the state as it is after the last step, unless that has been done.

        If the data was interrupted in the middle of a batch, its position is unknown, and nothing
        is stored.
        """
        self.flush()
        if self.done != self._stored and not self.data.torn:
            self._store({})
        if self.store is not None:
            self.store.wait()

    def _store(self, more: dict[str, Any]) -> None:
        """Store the state and the position in the data; process 0 does, for all."""
        if self._team.stores:
            position = self._team.position(self.data) | more
            if self.store is not None:
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

"""`fit`: a small loop around a step, to the end and through interruptions."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._errors import ShardingError, explain_error
from .._mesh import is_count
from .._progress import Progress, Snapshot, choose_view
from .checkpoint import Checkpoints
from .data import Batches
from .log import Log, draw_curves

LAG = 50
"""How many steps may be under way before their metrics are fetched."""

Evaluate = Callable[[Any], Mapping[str, Any]]


def fit(
    step: Any,
    state: Any,
    batches: Iterable[Any],
    *,
    steps: int,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    keep: int = 3,
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
    log: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[Snapshot], Any] | None = None,
) -> Any:
    """Train for a number of steps; interrupted and called again, go on where it was.

    With `checkpoint`, the state is stored every so many steps and at the end. Called again with the
    same arguments, after a crash or `kill -9` too, it takes the newest checkpoint and ends with
    the same parameters, bit by bit, as if nothing had happened.

    Args:
        step: What `sw.data_parallel` or `sw.nnx.data_parallel` gave.
        state: The state to begin with: `step.init(params)`; for NNX the pair
            `(model, optimizer)`, which is updated in place.
        batches: An iterable of batches; it is asked anew when it ends, if it can be. Its position
            is stored if its iterator has `get_state` and `set_state` (Grain); otherwise as many
            batches as were seen are drawn again and dropped, so it must give the same ones.
        steps: The number of steps in all, those before an interruption included.
        checkpoint: A folder for checkpoints.
        every: Store and evaluate every so many steps; a tenth of `steps` if left out.
        keep: How many checkpoints to keep.
        evaluate: `f(state)` that gives a mapping of numbers, such as what `sw.evaluate` returns; or
            several such functions by name. They are logged as `name/metric`.
        log: A `.jsonl` or `.csv` file for the metrics of every step; `log.jsonl` in the folder of
            checkpoints if left out. Beside it, `curves.png` shows them.
        progress: False shows nothing, a function is given every snapshot; otherwise a bar on a
            terminal and lines in a log.

    Returns:
        The state after the last step.

    Raises:
        ShardingError: The data ended too early, or the checkpoints are of another training.
    """
    if not all(hasattr(step, name) for name in ("advance", "arrays", "restore")):
        raise TypeError(
            explain_error(
                f"step is a {type(step).__name__}",
                where="sw.fit",
                rule="fit runs a step of sw.data_parallel or sw.nnx.data_parallel.",
                remedy="step = sw.data_parallel(loss, optax.adamw(1e-3))",
            )
        )
    every = max(1, steps // 10) if every is None else every
    if not (is_count(steps) and is_count(every) and is_count(keep)):
        raise ShardingError(
            explain_error(
                f"steps is {steps}, every is {every}, keep is {keep}",
                where="sw.fit",
                rule="All three are positive whole numbers.",
                remedy="steps=1000, every=100, keep=3",
            )
        )
    if evaluate is None or callable(evaluate):
        evaluate = {"eval": evaluate} if evaluate else {}
    if log is None and checkpoint is not None:
        log = Path(checkpoint) / "log.jsonl"
    with ExitStack() as stack:
        store = None
        if checkpoint is not None:
            store = Checkpoints(checkpoint, keep)
            stack.callback(store.close)
        data, done, row = Batches(batches), 0, None
        if store is not None and (latest := store.latest()) is not None:
            arrays, position = store.load(latest, step.arrays(state))
            state, done = step.restore(state, arrays), latest
            row = position.pop("row", None)
            data.seek(position)
            if done > steps:
                warnings.warn(
                    f"the training in {checkpoint} has {done} steps already, more than {steps}",
                    stacklevel=2,
                )
        story = None if log is None else Log(log, done)
        loop = _Loop(step, state, data, done, evaluate, store, story)
        bar = Progress(choose_view(progress, "fit"), steps, done, lambda: loop.shown, unit="steps")
        finished = False
        try:
            loop.catch_up(row)
            loop.run(steps, every, bar)
            finished = True
        finally:
            bar.close(finished)
            loop.flush()
            if story is not None and story.rows:
                draw_curves(story.rows, story.path.with_name("curves.png"))
    return loop.state


class _Loop:
    """The steps, their metrics on the way back, and what happens every so many steps."""

    def __init__(
        self,
        step: Any,
        state: Any,
        data: Batches,
        done: int,
        evaluate: Mapping[str, Evaluate],
        store: Checkpoints | None,
        log: Log | None,
    ) -> None:
        self.step, self.state, self.data, self.done = step, state, data, done
        self.evaluate, self.store, self.log = evaluate, store, log
        self.shown: dict[str, float] = {}
        self._pending: list[tuple[int, float, dict[str, Any]]] = []
        before = log.rows[-1]["seconds"] if log is not None and log.rows else 0.0
        self._began = time.monotonic() - before

    def run(self, steps: int, every: int, bar: Progress) -> None:
        while self.done < steps:
            batch = self.data.draw()
            self.state, metrics = self.step.advance(self.state, batch)
            self.done += 1
            self._pending.append((self.done, time.monotonic() - self._began, metrics))
            last = self.done == steps
            if last or self.done % every == 0:
                self._finish(self._fetch())
            elif len(self._pending) >= LAG:
                self.flush()
            bar.add(1)

    def catch_up(self, row: dict[str, Any] | None) -> None:
        """Evaluate and log the step of a checkpoint after which the training was killed."""
        logged = self.log.rows[-1]["step"] if self.log is not None and self.log.rows else 0
        if row is not None and logged < row["step"]:
            self._write([row | self._evaluate()])

    def flush(self) -> None:
        """Fetch and log the metrics of the steps so far."""
        self._write(self._fetch())

    def _finish(self, rows: list[dict[str, Any]]) -> None:
        """Log, store, evaluate: the log is never behind the newest checkpoint but by the row that
        waits for its evaluation, and that one is in the checkpoint."""
        *before, last = rows
        self._write(before)
        stored = False
        try:
            if self.store is not None:
                position = self.data.position() | {"row": last}
                self.store.save(self.done, self.step.arrays(self.state), position)
                stored = True
            last = last | self._evaluate()
        except BaseException:
            if not stored:
                self._write([last])
            raise
        self._write([last])

    def _fetch(self) -> list[dict[str, Any]]:
        """The metrics of the steps so far, one row each."""
        pending, self._pending = self._pending, []
        fetched = jax.device_get([metrics for *_, metrics in pending])
        rows = [
            {"step": number, "seconds": round(seconds, 3), **{k: v.item() for k, v in m.items()}}
            for (number, seconds, _), m in zip(pending, fetched, strict=True)
        ]
        for row in rows:
            if not row["updated"]:
                warnings.warn(
                    f"step {row['step']}: all weights were zero, nothing was updated", stacklevel=2
                )
        return rows

    def _write(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.shown = {"loss": rows[-1]["loss"]}
            if self.log is not None:
                self.log.add(rows)

    def _evaluate(self) -> dict[str, float]:
        found = {}
        for name, function in self.evaluate.items():
            result = function(self.state)
            if not isinstance(result, Mapping):
                raise _no_numbers(name, f"it returned a {type(result).__name__}")
            for metric, value in result.items():
                if isinstance(value, str | Mapping) or value is None:
                    raise _no_numbers(name, f"its {metric!r} is a {type(value).__name__}")
                if np.ndim(value):
                    raise _no_numbers(name, f"its {metric!r} has shape {list(np.shape(value))}")
                found[f"{name}/{metric}"] = float(value)
        return found


def _no_numbers(name: str, what: str) -> ShardingError:
    return ShardingError(
        explain_error(
            what,
            where=f"evaluate function {name!r}",
            rule="It gives a mapping of names to numbers.",
            remedy="return sw.evaluate(...), or {'accuracy': 0.9}",
        )
    )

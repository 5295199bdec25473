"""The processes that train together in one `fit`.

Process 0 writes checkpoints, log, curves and progress. The others read the checkpoint that it
names, from the same folder. A signal to any process ends all of them after the same step, which
JAX's preemption service determines.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...._base.durable import Signals, listen, stand_in
from ...._base.errors import ShardingError
from ...hosts import others, signals
from ...hosts.shared import require_shared
from .batches import Batches
from .checkpoint import Checkpoints, Restored


class Team:
    """The processes of one training, which may be one.

    Args:
        step: The training step.
    """

    def __init__(self, step: Any) -> None:
        self.shared = bool(getattr(step, "shared", False))
        self._own_data = getattr(step, "feed", None) == "own"
        self.first = not self.shared or others.is_first()

    @contextmanager
    def training(self) -> Iterator[Signals]:
        """Run the block with errors and signals shared between the processes."""
        if not self.shared:
            with listen("fit") as received:
                yield received
            return
        received = Signals()
        with others.together("sw.fit"), stand_in(received), signals.listening():
            yield received

    def agree(self, **settings: Any) -> None:
        """Raise if the processes were called with different arguments."""
        if not self.shared:
            return
        calls = others.gather(settings, "fit")
        for number, call in enumerate(calls):
            for name, value in call.items():
                if value != calls[0][name]:
                    raise ShardingError(
                        f"{name} is {calls[0][name]} in process 0 and {value} in process {number}",
                        where="sw.fit on several processes",
                        rule="All processes take the same steps.",
                        remedy=f"the same {name} everywhere.",
                    )

    def batches(self, data: Any, progress: Any) -> Batches:
        """Return the batches of this process.

        If each process has its own data, all with a length, the shortest ends an epoch for all of
        them: no process repeats examples before another has used all of its own.
        """
        if not (self.shared and self._own_data):
            return Batches(data)
        sizes = others.gather(len(data) if hasattr(data, "__len__") else None, "the data")
        if None in sizes:
            return Batches(data, on_end=self._report_restart)
        few, many = min(sizes), max(sizes)
        if self.first and few != many and progress is not False:
            report(
                f"process {sizes.index(few)} has {few} batches, process {sizes.index(many)} has "
                f"{many}: an epoch ends after {few} on all"
            )
        return Batches(data, epoch=few)

    def _report_restart(self, drawn: int) -> None:
        report(
            f"the data of process {others.index()} ended after {drawn} batches and restarts there, "
            "independently of the other processes; data with a length ends an epoch on all"
        )

    def open(self, folder: str | os.PathLike[str], keep: int) -> Checkpoints:
        """Return the checkpoints; only process 0 locks the folder and writes."""
        if self.shared:
            require_shared(folder, "argument 'checkpoint', folder")
        return Checkpoints(folder, keep, writes=self.first)

    def resume(self, store: Checkpoints, like: Any) -> Restored | None:
        """Return the checkpoint to resume from, which process 0 chooses for all."""
        if not self.shared:
            return store.resume(like)
        checkpoint = store.resume(like) if self.first else None
        chosen = others.spread(
            None if checkpoint is None else [checkpoint.step, checkpoint.seal, checkpoint.position],
            "the step to resume from",
        )
        if chosen is None:
            return None
        step, seal, position = chosen
        if checkpoint is None:
            checkpoint = store.read(step, like, seal)
        return Restored(step, checkpoint.arrays, self._local_position(position))

    def _local_position(self, position: dict[str, Any]) -> dict[str, Any]:
        """Return the position in the data of this process, from those of all processes."""
        positions = position.pop("processes", None)
        row = {"row": position["row"]} if "row" in position else {}
        if not self._own_data:
            return position
        if positions is None:
            positions = [position]
        if len(positions) == others.count():
            return {**positions[others.index()], **row}
        if (
            any(entry["state"] is not None for entry in positions)
            or len({o["drawn"] for o in positions}) > 1
        ):
            raise ShardingError(
                f"the checkpoint was written by {len(positions)} processes with data of their own, "
                f"there are {others.count()} now",
                where="the batches",
                rule="Readers that split the data by process and store their position resume with "
                "as many processes as before.",
                remedy="as many processes as before; or feed='whole', for any number of them.",
            )
        return {**positions[0], **row}  # all have drawn the same number of batches

    def position(self, data: Batches) -> dict[str, Any]:
        """Return the position in the data; that of all processes if each has its own."""
        position = data.position()
        if not (self.shared and self._own_data):
            return position
        collected = others.collect(position, "position")
        return position if collected is None else {**position, "processes": collected}

    def asked_to_end(self, heard: Signals, done: int) -> bool:
        """Return whether to end after this many steps, the same on all processes."""
        if self.shared and heard.signum is None:
            others.news().check()
            if signals.reached(done):
                heard.signum = signals.heard() or signal.SIGTERM
        return heard.signum is not None

    def decide(self, decision: bool) -> bool:
        """Return the decision of process 0, which has the log, on all processes."""
        return others.spread(decision, "a decision") if self.shared else decision

    def meet(self) -> None:
        """Wait for the others, and for what process 0 writes."""
        if self.shared:
            others.meet("the end of fit")


def report(message: str) -> None:
    """Print a line on standard error."""
    print(f"fit: {message}", file=sys.stderr, flush=True)

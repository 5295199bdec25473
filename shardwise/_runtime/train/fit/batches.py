"""The batches of a training, and the position to resume from."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...._base.durable import Signals
from ...._base.errors import ArgumentError, ShardingError, a_type

_END = object()


class Batches:
    """The batches of an iterable, which is iterated again when it ends, if possible.

    The position is the state of the iterator, if it has one (`get_state` and `set_state`, as
    Grain's iterators), and the number of restarts; otherwise the number of batches drawn, which are
    drawn again and dropped.

    Args:
        batches: The iterable.
        epoch: The number of batches after which to restart before its end: another process may have
            fewer.
        on_end: Called with the number of batches when they end for the first time.

    Attributes:
        torn: Whether an iterator with a state was interrupted during `next`: its state may then be
            from before or after that batch.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        epoch: int | None = None,
        on_end: Callable[[int], None] | None = None,
    ) -> None:
        if not hasattr(batches, "__iter__") or isinstance(batches, Mapping | str):
            raise ArgumentError(
                f"batches is {a_type(batches)}",
                where="sw.fit",
                rule="It is an iterable of batches.",
                remedy="a generator, a list of batches, a Grain or a torch DataLoader; "
                "[batch] for one batch again and again.",
            )
        self._batches = batches
        self._iterator: Iterator[Any] = iter(batches)
        self._drawn = self._restarts = self._of_epoch = 0
        self._epoch, self._on_end = epoch, on_end
        self.torn = False

    @property
    def drawn(self) -> int:
        """The number of batches drawn so far."""
        return self._drawn

    def draw(self, signals: Signals) -> Any:
        """Return the next batch; a signal interrupts the wait for it."""
        ended = self._epoch is not None and self._of_epoch >= self._epoch
        batch = _END if ended else self._next(signals)
        if batch is _END and self._iterator is not self._batches:
            self._restart()
            batch = self._next(signals)
        if batch is _END:
            raise ShardingError(
                f"they ended after {self._drawn}",
                where="the batches",
                rule="fit draws one batch per step and iterates again when the data ends; a "
                "generator cannot be iterated again, and empty data has no batch.",
                remedy="fewer steps, or data that does not end: itertools.cycle, or an object "
                "whose __iter__ starts again.",
            )
        self._drawn += 1
        self._of_epoch += 1
        return batch

    def _next(self, signals: Signals) -> Any:
        remembers = self._remembers
        with signals.at_once(later=remembers):
            self.torn = remembers
            batch = next(self._iterator, _END)
            self.torn = False
        return batch

    def position(self) -> dict[str, Any]:
        """Return the position, as JSON."""
        state = self._iterator.get_state() if self._remembers else None  # pyright: ignore
        if isinstance(state, bytes):
            state = {"base64": base64.b64encode(state).decode()}
        progress = {"of_epoch": self._of_epoch}
        return {"drawn": self._drawn, "restarts": self._restarts, "state": state, **progress}

    def seek(self, position: dict[str, Any], signals: Signals) -> None:
        """Move to a position."""
        state = position["state"]
        if state is None:
            while self._drawn < position["drawn"]:
                self.draw(signals)
            return
        if not self._remembers:
            raise ShardingError(
                f"{a_type(self._iterator)} has no set_state",
                where="the batches",
                rule="The checkpoint was written with an iterator that has a state.",
                remedy="the same data as before the interruption.",
            )
        if isinstance(state, dict) and set(state) == {"base64"}:
            state = base64.b64decode(state["base64"])
        # Each restart may shuffle the data differently.
        while self._restarts < position.get("restarts", 0):
            self._restart()
        self._iterator.set_state(state)  # pyright: ignore
        self._drawn, self._of_epoch = position["drawn"], position.get("of_epoch", 0)

    def _restart(self) -> None:
        if self._on_end is not None and not self._restarts:
            self._on_end(self._drawn)
        self._iterator = iter(self._batches)
        self._restarts += 1
        self._of_epoch = 0

    @property
    def _remembers(self) -> bool:
        return hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state")

"""Batches one after another, and the place to go on from after an interruption."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...._base.durable import Signals
from ...._base.errors import ArgumentError, ShardingError, a_type, explain_error

_END = object()


class Batches:
    """The batches of an iterable, again from its start when it ends, if it can be asked twice.

    The position is what the iterator itself says of it, where it can (`get_state` and `set_state`,
    as Grain's have), and how often the data was begun anew; or else the number of batches drawn:
    these are drawn again, and dropped.

    Args:
        batches: The iterable.
        epoch: After how many batches to begin anew, if not at its end: another process may have
            less.
        tell: Called with the number of batches when they end for the first time.

    Attributes:
        torn: Whether an iterator that remembers was broken off while it gave a batch: what it says
            of its position may then be before that batch or behind it.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        epoch: int | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        if not hasattr(batches, "__iter__") or isinstance(batches, Mapping | str):
            raise ArgumentError(
                explain_error(
                    f"batches is {a_type(batches)}",
                    where="sw.fit",
                    rule="It is an iterable of batches.",
                    remedy="a generator, a list of batches, a Grain or a torch DataLoader; "
                    "[batch] for one batch again and again.",
                )
            )
        self._batches = batches
        self._iterator: Iterator[Any] = iter(batches)
        self._drawn = self._restarts = self._of_epoch = 0
        self._epoch, self._tell = epoch, tell
        self.torn = False

    @property
    def drawn(self) -> int:
        """How many batches were drawn so far."""
        return self._drawn

    def draw(self, signals: Signals) -> Any:
        """The next batch; a signal does not wait for it."""
        over = self._epoch is not None and self._of_epoch >= self._epoch
        batch = _END if over else self._next(signals)
        if batch is _END and self._iterator is not self._batches:
            self._restart()
            batch = self._next(signals)
        if batch is _END:
            raise ShardingError(
                explain_error(
                    f"they ended after {self._drawn}",
                    where="the batches",
                    rule="fit draws one batch per step, and asks again for what can be asked "
                    "twice; a generator cannot, and what is empty has nothing to give.",
                    remedy="fewer steps, or data that does not end: itertools.cycle, or an object "
                    "whose __iter__ starts anew.",
                )
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
        """Where it stands, as JSON."""
        state = self._iterator.get_state() if self._remembers else None  # pyright: ignore
        if isinstance(state, bytes):
            state = {"base64": base64.b64encode(state).decode()}
        begun = {"of_epoch": self._of_epoch}
        return {"drawn": self._drawn, "restarts": self._restarts, "state": state, **begun}

    def seek(self, position: dict[str, Any], signals: Signals) -> None:
        """Go on from a position."""
        state = position["state"]
        if state is None:
            while self._drawn < position["drawn"]:
                self.draw(signals)
            return
        if not self._remembers:
            raise ShardingError(
                explain_error(
                    f"{a_type(self._iterator)} has no set_state",
                    where="the batches",
                    rule="The checkpoint was written with an iterator that remembers its position.",
                    remedy="the same data as before the interruption.",
                )
            )
        if isinstance(state, dict) and set(state) == {"base64"}:
            state = base64.b64decode(state["base64"])
        while self._restarts < position.get("restarts", 0):  # data may be shuffled anew each time
            self._restart()
        self._iterator.set_state(state)  # pyright: ignore
        self._drawn, self._of_epoch = position["drawn"], position.get("of_epoch", 0)

    def _restart(self) -> None:
        if self._tell is not None and not self._restarts:
            self._tell(self._drawn)
        self._iterator = iter(self._batches)
        self._restarts += 1
        self._of_epoch = 0

    @property
    def _remembers(self) -> bool:
        return hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state")

"""Replace attributes of JAX while a program is traced, and restore them afterwards.

The replacements check a context variable for whether the caller traces a simulated program, so that
other threads see no difference meanwhile. Traces may overlap: the patches of the first are removed
when the last one ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Patch:
    """An attribute of an object, or an item of a dictionary, and its replacement."""

    owner: Any
    name: Any
    wrap: Callable[[Any], Any]
    """Returns the replacement for the original; None stands for an absent item."""

    def get(self) -> Any:
        """Return the current value; for class attributes, the raw one."""
        attributes = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return attributes.get(self.name, _ABSENT)

    def put(self, value: Any) -> None:
        """Set the value; `_ABSENT` removes it."""
        if not isinstance(self.owner, dict):
            setattr(self.owner, self.name, value)
        elif value is _ABSENT:
            self.owner.pop(self.name, None)
        else:
            self.owner[self.name] = value


class Patches:
    """Patches that are installed together, as long as anyone needs them."""

    def __init__(self, make: Callable[[], Sequence[Patch]]):
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._replaced: list[tuple[Patch, Any, Any]] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Return a context in which the patches are installed."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._install()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._remove()

    def _install(self) -> None:
        for patch in self._make():
            original = patch.get()
            new = patch.wrap(None if original is _ABSENT else original)
            patch.put(new)
            self._replaced.append((patch, original, new))

    def _remove(self) -> None:
        while self._replaced:
            patch, original, new = self._replaced.pop()
            if patch.get() is new:  # otherwise other code has replaced it again
                patch.put(original)

"""What meaning says of a check: which results are proved, and why the others are wrong.

A result whose meaning is the same on the mesh and on one device needs no comparison of numbers, so
a mesh on which all are proved is run only where it is the largest, as a cross-check. Where numbers
are wrong, the place at which the meanings part is the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..._base.doing import doing
from ..._base.errors import ShardwiseError, warn
from ..._meaning import Gap, Reading
from ..faults.powers import Sizes
from .judging import OTHER, SAME
from .running import Run

T = TypeVar("T")


class Meant:
    """The meanings of the results of one program on several meshes."""

    def __init__(self, base: Run):
        self.base = base
        self._known: dict[int, list[list[Gap]] | None] = {}
        self._read_on: dict[int, tuple[Sizes, list[list[Gap]] | None]] = {}
        """The same with the sizes of the meshes."""
        self.plain = _read(base, None)

    def gaps(self, run: Run) -> list[list[Gap]] | None:
        """For each result where it parts from one device's; None where that is not known."""
        if id(run) not in self._known:
            self._known[id(run)] = self._compared(run)
            if run.mesh is not None:
                self._read_on[id(run)] = dict(run.mesh.shape), self._known[id(run)]
        return self._known[id(run)]

    def known_of(self, index: int) -> list[tuple[Sizes, list[Gap]]]:
        """For one result the same on every mesh that was read so far."""
        rows = self._read_on.values()
        return [(mesh, found[index]) for mesh, found in rows if found is not None]

    def _compared(self, run: Run) -> list[list[Gap]] | None:
        if self.plain is None or run.traced.tree != self.base.traced.tree:
            return None
        own = _read(run, self.plain)
        return _followed(own.gaps) if own is not None else None

    def proved(self, run: Run) -> bool:
        """Whether every result is proved to be what it is on one device."""
        found = self.gaps(run)
        return found is not None and not any(found) and not run.program.watch.sites

    def judged(self, run: Run) -> list[str | None]:
        """What is known of each result: that it is the same as on one device, or another."""
        found = self.gaps(run)
        if found is None or run.program.watch.sites:
            return [None] * len(run.paths)
        return [SAME if not gaps else OTHER if _is_certain(gaps) else None for gaps in found]

    def likewise(self, run: Run, larger: Run) -> bool:
        """Whether the same results are multiples of something as on a larger mesh, and show it."""
        here, there = self.gaps(run), self.gaps(larger)
        if here is None or there is None or run.program.watch.sites:
            return False
        alike = all(bool(own) == bool(other) for own, other in zip(here, there, strict=True))
        # What is lost on the way on one of them may not be on the other.
        return alike and any(here) and all(gap.linear for gaps in [*here, *there] for gap in gaps)


def _is_certain(gaps: list[Gap]) -> bool:
    return any(gap.kind in ("times", "mistake") and gap.sure for gap in gaps)


def _read(run: Run, plain: Reading | None) -> Reading | None:
    doing(f"following each value {run.on}")
    constants = run.traced.constants
    return _followed(lambda: Reading(run.body, constants, plain))


def _followed(f: Callable[[], T]) -> T | None:
    try:
        return f()
    except ShardwiseError:
        raise
    except Exception as error:  # a gap in the analysis must not cost the user the verdict
        _tell(error)
        return None


def _tell(error: Any) -> None:
    warn(
        f"shardwise could not follow this program ({type(error).__name__}: {error}), and compares "
        "numbers alone. This is a bug in shardwise: a report with the program would help.",
        RuntimeWarning,
    )

"""Use the symbolic analysis in a check: which results are proved, and why others are wrong.

A result with the same symbolic value on the mesh and on one device needs no numerical comparison,
so a proved mesh is run only if it is the largest, as a cross-check. If numbers are wrong, the place
at which the symbolic values start to differ is the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..._base.doing import doing
from ..._base.errors import ShardwiseError, warn
from ..._meaning import Gap, Reading, TooLate
from ..faults.powers import Sizes
from ..lift import Run

T = TypeVar("T")


class Meant:
    """The symbolic readings of one program on several meshes."""

    def __init__(self, base: Run):
        self.base = base
        self._gaps: dict[Run, list[list[Gap]] | None] = {}
        self.plain = _read(base, None)

    def gaps(self, run: Run) -> list[list[Gap]] | None:
        """Return for each result where it differs from one device; None if that is not known."""
        if run not in self._gaps:
            comparable = self.plain is not None and run.traced.tree == self.base.traced.tree
            reading = _read(run, self.plain) if comparable else None
            self._gaps[run] = _followed(reading.gaps) if reading is not None else None
        return self._gaps[run]

    def known_of(self, index: int) -> list[tuple[Sizes, list[Gap]]]:
        """Return the gaps of one result on every mesh that was read so far."""
        return [(run.sizes, gaps[index]) for run, gaps in self._gaps.items() if gaps is not None]

    def proved(self, run: Run) -> bool:
        """Return whether every result is proved equal to that on one device."""
        gaps = self.gaps(run)
        return gaps is not None and not any(gaps) and not run.program.watch.sites

    def surely_wrong(self, run: Run) -> list[bool]:
        """Return for each result whether it is known to differ from that on one device."""
        results = None if run.program.watch.sites else self.gaps(run)
        return [any(map(_is_certain, row)) for row in results or [[] for _ in run.paths]]

    def differs_alike(self, run: Run, larger: Run) -> bool:
        """Return whether the same results differ as on a larger mesh, by linear steps only."""
        small, large = self.gaps(run), self.gaps(larger)
        if small is None or large is None or run.program.watch.sites:
            return False
        alike = all(bool(row) == bool(twin) for row, twin in zip(small, large, strict=True))
        # A factor that a nonlinear operation loses on one mesh may survive on the other.
        return alike and any(small) and all(gap.linear for rows in [*small, *large] for gap in rows)


def _is_certain(gap: Gap) -> bool:
    return gap.kind in ("times", "mistake") and gap.sure


def _read(run: Run, plain: Reading | None) -> Reading | None:
    doing(f"following each value {run.on}")
    constants = run.traced.constants
    return _followed(Reading(run.body, constants, plain).followed)


def _followed(f: Callable[[], T]) -> T | None:
    try:
        return f()
    except ShardwiseError:
        raise
    except TooLate:  # numbers alone may still show what is wrong
        return None
    except Exception as error:  # a gap in the analysis must not cost the user the verdict
        warn(
            f"shardwise could not follow this program ({type(error).__name__}: {error}), and "
            "compares numbers alone. This is a bug in shardwise: a report with the program would "
            "help.",
            RuntimeWarning,
        )
        return None

"""`@sw.case`: a program with arguments and meshes, declared for the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Sizes = Mapping[str, int | Sequence[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function that returns `(f, args)`, and the meshes on which to check `f`."""

    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]
    mesh: Sizes
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the declaring function."""
        return self.make.__name__

    def __call__(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        return self.make()


def case(*, mesh: Sizes, **options: Any) -> Callable[[Callable[[], Any]], Case]:
    """Declare a case for `shardwise check`.

    Args:
        mesh: Axis names, each with a size or a list of sizes, as `check` takes them.
        **options: Further options of `check`: `reference`, `rtol`, `atol`.

    Example:
        ```python
        import shardwise as sw

        @sw.case(mesh={"data": [1, 2, 4, 8]})
        def training_step():
            return step, (params, batch)
        ```
    """
    return lambda make: Case(make, mesh, options)

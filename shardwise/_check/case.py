"""`@sw.case`: a program with arguments and meshes, declared for the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._errors import ShardwiseError, explain_error

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

    @property
    def line(self) -> int:
        """Where it is declared."""
        code = getattr(self.make, "__code__", None)
        return code.co_firstlineno if code else 1

    def __call__(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        return self.make()


DECLARED: list[Case] = []
"""All cases, those too whose name in the module a later one has taken."""


def case(
    *misplaced: Any, mesh: Sizes | None = None, **options: Any
) -> Callable[[Callable[[], Any]], Case]:
    """Declare a case for `shardwise check`.

    Args:
        mesh: Axis names, each with a size or a list of sizes, as `check` takes them.
        **options: Further options of `check`: `reference`, `rtol`, `atol`, `seed`.

    Raises:
        ShardwiseError: There is no mesh: `@sw.case` without parentheses, say.

    Example:
        ```python
        import shardwise as sw

        @sw.case(mesh={"data": [1, 2, 4, 8]})
        def training_step():
            return step, (params, batch)
        ```
    """
    if misplaced or not mesh:
        bare = bool(misplaced) and callable(misplaced[0])
        raise ShardwiseError(
            explain_error(
                "it stands without parentheses" if bare else "it has no mesh",
                where="sw.case",
                rule="A case names the axes and the sizes to try, and the function follows.",
                remedy='@sw.case(mesh={"data": [1, 2, 4, 8]})',
            )
        )

    def declare(make: Callable[[], Any]) -> Case:
        DECLARED.append(Case(make, mesh, options))
        return DECLARED[-1]

    return declare

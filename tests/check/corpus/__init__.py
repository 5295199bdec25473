"""Wrong programs, each a small real mistake, and a right twin of each.

A pair is a class with a docstring (the mistake in a sentence) and two functions, `right` and
`wrong`. A line of the wrong one that ends in `# wrong` is a fair answer to "where"; there are few.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from ..marks import marked

KINDS = (
    "data",
    "tensor",
    "pipeline",
    "experts",
    "sequence",
    "optimizer",
    "randomness",
    "control",
    "published",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A wrong program and its right twin."""

    kind: str
    name: str
    mistake: str
    right: Callable[..., Any]
    wrong: Callable[..., Any]
    mesh: dict[str, Any]
    args: Callable[[], tuple[Any, ...]]
    codes: frozenset[str]
    """Any of these is a fair name for what is wrong."""

    @property
    def lines(self) -> set[int]:
        """The lines at which the mistake may be seen."""
        return marked(self.wrong)

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}"


PAIRS: dict[str, Pair] = {}


def pair(
    *, mesh: dict[str, Any], args: Callable[[], tuple[Any, ...]], codes: set[str]
) -> Callable[[type], Pair]:
    """Make a pair of a class with the functions `right` and `wrong`."""

    def make(cls: type) -> Pair:
        kind = cls.__module__.rsplit(".", 1)[1]
        doc = " ".join((cls.__doc__ or "").split())
        right, wrong = vars(cls)["right"], vars(cls)["wrong"]
        made = Pair(kind, cls.__name__, doc, right, wrong, mesh, args, frozenset(codes))
        PAIRS[str(made)] = made
        return made

    return make


def pairs() -> Iterator[Pair]:
    """All of them, in the same order whichever module was imported first."""
    for kind in KINDS:
        importlib.import_module(f"{__name__}.{kind}")
    yield from sorted(PAIRS.values(), key=lambda pair: KINDS.index(pair.kind))

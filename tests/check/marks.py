"""Expected lines, read off the source: the lines of a function that carry a mark."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def marked(f: Callable[..., Any], mark: str = "# wrong") -> set[int]:
    """The numbers of the lines of `f` that end in `mark`."""
    lines, start = inspect.getsourcelines(inspect.unwrap(f))
    return {start + i for i, line in enumerate(lines) if line.rstrip().endswith(mark)}


def line_of(f: Callable[..., Any], mark: str) -> int:
    """The number of the one line of `f` that ends in `mark`."""
    (line,) = marked(f, mark)
    return line

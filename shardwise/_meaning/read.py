"""A traced program read once: the meaning of every result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._program import Body
from . import term as T
from .value import Value, whole
from .walk import Walk, literal


@dataclasses.dataclass(frozen=True, eq=False)
class Meaning:
    """What was found out about a program on one mesh."""

    walk: Walk
    results: list[Value]


def read(body: Body, constants: Sequence[Any], reference: Meaning | None = None) -> Meaning:
    """Read a program whose first inputs are `constants` and whose others are its arguments."""
    own = Walk(reference.walk if reference is not None else None)
    ins = [whole(literal(value)) for value in constants]
    for index, var in enumerate(body.ins[len(constants) :]):
        ins.append(whole(T.symbol("argument", index, shape=tuple(var.shape))))
    return Meaning(own, own.run(body, ins))

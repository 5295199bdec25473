"""A traced program read once: the meaning of every result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._mesh import Axis
from .._program import Body
from . import term as T
from .devices import DeviceWalk, Many, TooLong
from .value import Value, whole
from .walk import Walk, literal


@dataclasses.dataclass(frozen=True, eq=False)
class Meaning:
    """What was found out about a program on one mesh."""

    walk: Walk
    results: list[Value]


def read(body: Body, constants: Sequence[Any], reference: Meaning | None = None) -> Meaning:
    """Read a program whose first inputs are `constants` and whose others are its arguments."""
    return _walked(Walk(reference.walk if reference is not None else None), body, constants)


def read_apart(
    body: Body, constants: Sequence[Any], axis: Axis | None, reference: Meaning | None = None
) -> Meaning | None:
    """Read a program with the devices along an axis kept apart and with its loops unrolled.

    None if it is too long for that.
    """
    own = DeviceWalk(axis, reference.walk if reference is not None else None)
    try:
        return _walked(own, body, constants)
    except TooLong:
        return None


def _walked(own: Walk, body: Body, constants: Sequence[Any]) -> Meaning:
    ins = [whole(literal(value)) for value in constants]
    for index, var in enumerate(body.ins[len(constants) :]):
        ins.append(whole(T.symbol("argument", index, shape=tuple(var.shape))))
    return Meaning(own, [one_of(result) for result in own.run(body, ins)])


def one_of(result: Any) -> Value:
    """A result; of one that differs between devices outside any `shard_map`, the first device's."""
    return result.values[0] if isinstance(result, Many) else result

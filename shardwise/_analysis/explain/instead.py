"""Describe what would be sent instead of a collective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..._mesh import Axis
from ..._program import Collective, Var
from ..._program.collectives import RULES


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A replacement: a collective over these axes with this many bytes."""

    name: str
    axes: tuple[Axis, ...]
    bytes: int
    once: int = 1
    """It runs once for this many runs of the original."""

    @property
    def group_size(self) -> int:
        """The number of devices that exchange it with each other."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def sent(self) -> int:
        """Sent by one device each time."""
        return RULES[self.name].sends(self.bytes, self.group_size)


@dataclasses.dataclass(frozen=True)
class Avoidance:
    """How a collective could be avoided. The kinds are those of `Redundant`."""

    kind: str
    reason: str
    remedy: str
    others: tuple[Replacement, ...] = ()
    also: Collective | None = None
    """Another collective that becomes unnecessary too."""
    memory: int = 0
    """Bytes that one device has to keep for it."""


def sent_bytes(op: Collective) -> int:
    """Return the bytes that a device contributes to a collective."""
    operand = op.ins[0]
    return (operand if isinstance(operand, Var) else op.outs[0]).bytes


def names(axes: Sequence[Axis]) -> str:
    """Format axes for a sentence."""
    return ", ".join(axis.name for axis in axes)


def code(axes: Sequence[Axis]) -> str:
    """Format axes as source code."""
    names = tuple(axis.name for axis in axes)
    return repr(names[0]) if len(names) == 1 else repr(names)

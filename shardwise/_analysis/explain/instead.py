"""Describe what would be sent instead of a collective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..._mesh import Axis
from ..._program import Collective, Var
from ..._program.collectives import RULES
from .data import Instead


@dataclasses.dataclass(frozen=True)
class Avoidance:
    """How a collective could be avoided. The kinds are those of `Redundant`."""

    kind: str
    reason: str
    remedy: str
    others: tuple[Instead, ...] = ()
    """What is sent instead, each once."""
    once: int = 1
    """The others run once for this many runs of the collective."""
    also: Collective | None = None
    """Another collective that becomes unnecessary too."""
    memory: int = 0
    """Bytes that one device has to keep for it."""


def replacement(name: str, axes: Sequence[Axis], size: int) -> Instead:
    """Return a collective of this many bytes over these axes."""
    group_size = math.prod(axis.size for axis in axes)
    sent = RULES[name].sends(size, group_size)
    return Instead(name, tuple(axis.name for axis in axes), group_size, sent, times=1)


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

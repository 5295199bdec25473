"""The numbered programs of a seed, and which of them are run together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import prod

from .draw import Draw
from .generate import generate
from .language import Program

LONG, MIDDLE, SHORT = 9, 4, 2
"""How many statements a program has at most, at its top level."""


def make(seed: int, number: int) -> Program:
    """Program `number` of a seed, always the same. Every twentieth one has to be found to hang.

    Most are short: what breaks a long program nearly always breaks a short one too, and the time
    of one long program tries ten of them.
    """
    length = LONG if number % 32 == 0 else MIDDLE if number % 8 == 0 else SHORT
    return generate(Draw(f"{seed}:{number}"), length, hangs=number % 20 == 9)


TOGETHER = 10
"""How many programs are compiled as one at most."""


def groups(seed: int, numbers: Iterable[int]) -> list[list[int]]:
    """The numbers, as groups of programs that can be compiled together."""
    alike: dict[Hashable, list[int]] = {}
    for number in numbers:
        alike.setdefault(_kind(make(seed, number)), []).append(number)
    return [
        same[start : start + TOGETHER]
        for same in alike.values()
        for start in range(0, len(same), TOGETHER)
    ]


def _kind(program: Program) -> Hashable:
    """A compiled program has one set of devices, and one mesh that is around it."""
    devices = prod(program.mesh.values())
    around = tuple(program.mesh.items()) if program.explicit else None
    return program.hangs, program.x64, devices, around

"""The numbered programs of a seed."""

from __future__ import annotations

from .draw import Draw
from .generate import generate
from .language import Program

LONG, SHORT = 9, 4
"""How many statements a program has at most, at its top level."""


def make(seed: int, number: int) -> Program:
    """Program `number` of a seed, always the same. Every tenth one has to be found to hang.

    Three of four are short: what breaks a long program nearly always breaks a short one too, and
    the time of one long program tries several of them.
    """
    length = LONG if number % 4 == 0 else SHORT
    return generate(Draw(f"{seed}:{number}"), length, hangs=number % 10 == 9)

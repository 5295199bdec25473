"""The numbered programs of a seed."""

from __future__ import annotations

from .draw import Draw
from .generate import generate
from .language import Program


def make(seed: int, number: int) -> Program:
    """Program `number` of a seed, always the same. Every tenth one has to be found to hang."""
    return generate(Draw(f"{seed}:{number}"), hangs=number % 10 == 9)

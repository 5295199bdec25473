"""Exact sums on the host, independent of their order.

A finite float is an integer times a power of two. `ExactSum` keeps the running total as one Python
integer in units of 2^-1074, the smallest float64, so that no addition rounds: the total does not
depend on the order, the number of devices or where a run was interrupted. It is rounded once, when
it is read.
"""

from __future__ import annotations

import math

_UNIT = 1074  # 2**-1074 is the smallest positive float64


class ExactSum:
    """The exact sum of finite floats and integers."""

    __slots__ = ("units",)

    def __init__(self, units: int = 0) -> None:
        self.units = units

    def add(self, value: float | int) -> None:
        """Add a finite float or an integer."""
        if isinstance(value, int):
            self.units += value << _UNIT
            return
        numerator, denominator = value.as_integer_ratio()
        self.units += numerator << (_UNIT + 1 - denominator.bit_length())

    def over(self, weights: ExactSum) -> float:
        """Return the quotient of two exact sums, rounded once; NaN if the other is zero."""
        return _divide(self.units, weights.units) if weights.units else math.nan

    def __float__(self) -> float:
        return _divide(self.units, 1 << _UNIT)

    def __int__(self) -> int:
        return self.units >> _UNIT


def _divide(numerator: int, denominator: int) -> float:
    # Division of Python integers is correctly rounded, and raises where float64 has no room.
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf

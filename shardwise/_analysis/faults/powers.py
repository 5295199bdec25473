"""Explain a factor as a product of powers of axis sizes, consistent with every mesh tried.

A factor of 4 on `{dp: 4, tp: 4}` may come from either axis, and on `{dp: 4, tp: 2}` from `dp` or
from `tp` squared. Other meshes decide: where a result is right, the factor is 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

Sizes = Mapping[str, int]
Seen = Sequence[tuple[Sizes, "Fraction | float"]]
"""The factor of one result on each of several meshes."""

Powers = dict[str, int]
"""The exponent of each axis size in a factor: `{"tp": 2}`, or `{"tp": 1, "dp": -1}`."""

MOST = 2
"""The largest exponent tried: higher powers fit by chance."""


def powers(
    sizes: Sizes, factor: Fraction | float, observations: Seen = (), slack: float = 0.0
) -> list[Powers]:
    """Return the simplest powers that fit a factor on its mesh and all others; empty if none do.

    A factor of 1 is none, although one axis size over another may be 1. There are several if no
    mesh tells them apart. If none fit everywhere, the factor has more than one cause, and only its
    own mesh counts, without the axes along which the result was right.
    """
    measured = (sizes, factor)
    if _fits({}, measured, slack):
        return []
    right_axes = {name for name in sizes if _right_along(name, observations, slack)}
    fitting = [guess for guess in _candidates(sizes) if _fits(guess, measured, slack)]
    everywhere = [
        guess for guess in fitting if all(_fits(guess, point, slack) for point in observations)
    ]
    return _simplest(everywhere or [guess for guess in fitting if not right_axes & guess.keys()])


def _right_along(name: str, observations: Seen, slack: float) -> bool:
    """Return whether the result was right on several devices along this axis alone."""
    checks = [
        abs(float(factor) - 1) <= slack
        for sizes, factor in observations
        if sizes.get(name, 1) > 1 and math.prod(sizes.values()) == sizes[name]
    ]
    return bool(checks) and all(checks)


def _candidates(sizes: Sizes) -> Iterator[Powers]:
    names = [name for name, size in sizes.items() if size > 1]
    for exponents in itertools.product(range(-MOST, MOST + 1), repeat=len(names)):
        candidate = {name: power for name, power in zip(names, exponents, strict=True) if power}
        if candidate:
            yield candidate


def _fits(candidate: Powers, observation: tuple[Sizes, Fraction | float], slack: float) -> bool:
    sizes, factor = observation
    product = math.prod(
        (Fraction(sizes.get(name, 1)) ** n for name, n in candidate.items()), start=1
    )
    if isinstance(factor, float):
        return abs(factor / float(product) - 1) <= slack
    return factor == product


def _simplest(candidates: Sequence[Powers]) -> list[Powers]:
    """Return the simplest: products of sizes before quotients, and both before squares."""

    def rank(candidate: Powers) -> tuple[int, int, int]:
        values = candidate.values()
        return max(map(abs, values)), len({n > 0 for n in values}), len(values)

    least = min(map(rank, candidates), default=None)
    return [candidate for candidate in candidates if rank(candidate) == least]


def plain_product(exponents: Powers, sign: int = 1) -> bool:
    """Return whether all exponents are `sign`: a plain product of sizes, or its inverse."""
    return all(power == sign for power in exponents.values())


def size_words(exponents: Powers) -> str:
    """Describe powers: `the square of the size of 'tp'`, `the size of 'tp' over that of 'dp'`."""
    numerator = [name for name, power in exponents.items() if power > 0 for _ in range(power)]
    denominator = [name for name, power in exponents.items() if power < 0 for _ in range(-power)]
    if not numerator:
        return f"1 over {_sizes(denominator)}"
    return _sizes(numerator) + (f" over {_sizes(denominator, 'that')}" if denominator else "")


def _sizes(names: Sequence[str], size: str = "the size") -> str:
    parts = [
        f"the square of {size} of {name!r}" if names.count(name) > 1 else f"{size} of {name!r}"
        for name in dict.fromkeys(names)
    ]
    return " times ".join(parts)

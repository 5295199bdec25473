"""Compare results with expected ones, and format them briefly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .sandbox.wire import NonArray

RTOL, ATOL = 2e-4, 2e-5
"""Tolerances, since sums over devices round differently; ATOL is relative to the largest entry."""

ROOM = 60
"""The maximum number of characters of a formatted value."""


def same(actual: Any, expected: Any) -> bool:
    """Return whether a result equals the expected one, up to rounding."""
    return not difference(actual, expected)


def difference(actual: Any, expected: Any) -> str:
    """Return how a result differs: `kind`, `shape`, `finite`, `numbers`, or an empty string."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or set(actual) != {str(key) for key in expected}:
            return "kind"
        return _first(difference(actual[str(key)], item) for key, item in expected.items())
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return "kind"
        return _first(difference(a, b) for a, b in zip(actual, expected, strict=True))
    got, want = as_array(actual), np.asarray(expected)
    if got is None:
        return "kind"
    if got.shape != want.shape:
        return "shape"
    if want.dtype.kind in "biu" and got.dtype.kind in "biu":
        return "" if np.array_equal(got, want) else "numbers"
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not np.isfinite(got[np.isfinite(want)]).all():
        return "finite"
    scale = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    close = np.isclose(got, want, rtol=RTOL, atol=max(ATOL * scale, 1e-9), equal_nan=True)
    return "" if close.all() else "numbers"


def _first(kinds: Any) -> str:
    return next((kind for kind in kinds if kind), "")


def as_array(value: Any) -> np.ndarray | None:
    """Return a result, which may be a list of numbers, as an array; None if it is not numeric."""
    if isinstance(value, np.ndarray):
        return value
    if value is None or isinstance(value, NonArray | dict):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def factor(actual: Any, expected: Any) -> float | None:
    """Return the factor by which a result is too large, if it is the same for all elements."""
    got, want = _flat(actual), _flat(expected)
    if got is None or want is None or got.shape != want.shape or not np.isfinite(got).all():
        return None
    power = float(want @ want)
    if not power:
        return None
    times = float(want @ got) / power
    return (
        times if np.allclose(got, times * want, rtol=1e-3, atol=1e-4 * np.abs(want).max()) else None
    )


def _flat(value: Any) -> np.ndarray | None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        parts = [_flat(item) for item in value]
        arrays = [part for part in parts if part is not None]
        return np.concatenate(arrays) if arrays and len(arrays) == len(parts) else None
    array = as_array(value)
    return None if array is None else array.astype(np.float64).reshape(-1)


def shown(value: Any, beside: Any = None) -> str:
    """Format a value briefly; for a large array, the first entry that differs from `beside`."""
    if isinstance(value, Mapping):
        twins = beside if isinstance(beside, Mapping) else {}
        pairs = [(item, twins.get(key)) for key, item in value.items()]
        parts = [f"{key}: {shown(*pair)}" for key, pair in zip(value, pairs, strict=True)]
        return "{" + _parts(parts, pairs) + "}"
    if isinstance(value, list | tuple) and as_array(value) is None:
        twins = beside if isinstance(beside, list | tuple) else [None] * len(value)
        pairs = list(zip(value, twins, strict=False))
        return f"({_parts([shown(*pair) for pair in pairs], pairs)})"
    array = as_array(value)
    if array is None:
        return repr(value)
    if array.size <= 8:
        return _cut(_numbers(array))
    at = _where(array, as_array(beside) if beside is not None else None)
    place = "".join(f"[{i}]" for i in at)
    number = _numbers(array[at])
    return _cut(f"{number} at {place} of shape {array.shape}")


def shapes(actual: Any, expected: Any, part: str = "") -> tuple[str, str] | None:
    """Return the expected and the found shape as text, if they differ."""
    if difference(actual, expected) != "shape":
        return None
    if isinstance(expected, Mapping):
        pairs = [(str(key), actual[str(key)], item) for key, item in expected.items()]
    elif isinstance(expected, list | tuple):
        pairs = [
            (f"{part}[{i}]", a, b) for i, (a, b) in enumerate(zip(actual, expected, strict=True))
        ]
    else:
        name = f"{part}: " if part else ""
        return f"{name}shape {np.shape(expected)}", f"{name}shape {np.shape(actual)}"
    return next((both for name, a, b in pairs if (both := shapes(a, b, name))), None)


def _where(array: np.ndarray, twin: np.ndarray | None) -> tuple[int, ...]:
    """Return the index of the entry to show: the first one clearly wrong, or the first of all."""
    if twin is not None and twin.shape == array.shape:
        a, b = array.astype(np.float64), twin.astype(np.float64)
        off = ~np.isclose(a, b, rtol=RTOL, atol=ATOL * float(np.abs(b).max(initial=0.0)))
        if off.any():
            return tuple(int(i) for i in np.argwhere(off)[0])
    return (0,) * array.ndim


def _parts(shown_: list[str], pairs: list[tuple[Any, Any]]) -> str:
    """Join the formatted parts of a value; if too long, only the first that differs, uncut."""
    whole = ", ".join(shown_)
    if len(whole) <= ROOM:
        return whole
    off = next((i for i, pair in enumerate(pairs) if pair[1] is not None and _differ(*pair)), 0)
    before, after = "... " * (off > 0), " ..." * (off + 1 < len(shown_))
    return f"{before}{shown_[off]}{after}"


def _differ(value: Any, twin: Any) -> bool:
    if isinstance(value, Mapping | list | tuple) or isinstance(twin, Mapping | list | tuple):
        return not same(_plain(value), _plain(twin))
    array, twin_array = as_array(value), as_array(twin)
    return array is None or twin_array is None or bool(difference(array, twin_array))


def _plain(value: Any) -> Any:
    """Convert keys to strings and sequences to lists, as in results from the sandbox."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _numbers(array: Any) -> str:
    text = np.array2string(np.asarray(array), precision=5, suppress_small=True, separator=", ")
    return " ".join(text.split())


def _cut(text: str) -> str:
    return text if len(text) <= ROOM else text[: ROOM - 4] + " ..."

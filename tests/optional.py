"""Tests that not every machine can run: each skip says what is not tried, and what to do about it.

`pytest` ends with one line for each reason (`tests/conftest.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

REMEDY = "To run:"


def because(untried: str, remedy: str) -> str:
    """Return the reason of a skip: what is missing and not tried, and what would change that."""
    return f"{untried.rstrip('.')}. {REMEDY} {remedy}"


def needed(module: str, untried: str) -> Any:
    """Return the module; without it skip the test, with a reason that names what is lost."""
    package = module.partition(".")[0]
    missing = f"{package} is not installed, so this is not tried: {untried}"
    remedy = "make test-all" if package not in MANUAL else f"pip install {package}"
    return pytest.importorskip(module, reason=because(missing, remedy))


MANUAL = {"torch"}
"""Packages too large to be installed by `make test-all`."""


def summary(reasons: Iterable[str]) -> list[str]:
    """Return one line for each reason, the most frequent first."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    return [
        f"{count} skipped: {' '.join(reason.split())}" for reason, count in counts.most_common()
    ]

"""Packages and programs that not every machine has: a skip says what is then not tried."""

from __future__ import annotations

from typing import Any

import pytest


def needed(module: str, untried: str) -> Any:
    """The module; without it the test is skipped, and the reason names what is lost."""
    package = module.partition(".")[0]
    return pytest.importorskip(
        module, reason=f"{package} is not installed, so this is not tried: {untried}."
    )

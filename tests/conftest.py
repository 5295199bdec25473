"""The configuration of all tests: eight devices, and a hypothesis that repeats itself in CI."""

from __future__ import annotations

import os

from .devices import request_devices

request_devices()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Compiling takes as long as it takes: a deadline would only fail on slow machines.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
    "print_blob": True,
}
settings.register_profile("ci", derandomize=True, **_COMMON)
settings.register_profile("dev", **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def strict_promotion():
    """Two arrays of different dtypes never mix by themselves: not in a program, not in ours."""
    import jax

    with jax.numpy_dtype_promotion("strict"):
        yield

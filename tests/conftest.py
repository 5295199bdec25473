"""The configuration of all tests: eight devices, and a hypothesis that repeats itself in CI."""

from __future__ import annotations

import contextlib
import gc
import os
import signal

from .devices import request_devices

request_devices()

import pytest  # noqa: E402

from . import compiled, optional, selection  # noqa: E402

# Traced programs are many small objects that stay: looking at all of them again takes a twentieth
# of the time of the tests.
gc.set_threshold(100_000, 50, 100)

with contextlib.suppress(ImportError):  # few tests need it
    from hypothesis import HealthCheck, settings

    # Compiling takes as long as it takes: a deadline would only fail on slow machines.
    _COMMON = {
        "deadline": None,
        "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
        "print_blob": True,
    }
    settings.register_profile("ci", derandomize=True, **_COMMON)
    settings.register_profile("dev", **_COMMON)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config):
    """Where the tests run, each program is compiled once."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        compiled.begin()


def pytest_unconfigure():
    compiled.end()


@pytest.fixture(autouse=True)
def compiled_quickly(request):
    """Most programs run once."""
    with compiled.quickly(request.node.nodeid):
        yield


@pytest.fixture
def strict_promotion():
    """Two arrays of different dtypes never mix by themselves: not in a program, not in ours."""
    import jax

    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def interruptible():
    """Ctrl-C as a terminal has it: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(items):
    """Mark tests, so that `-m` can leave them out."""
    selection.mark(items)


def pytest_terminal_summary(terminalreporter):
    """Say why tests were skipped, and what would change it: one line for each reason."""
    skipped = terminalreporter.stats.get("skipped", ())
    for line in optional.summary(str(report.longrepr[2]) for report in skipped):
        terminalreporter.write_line(line)
    if terminalreporter.stats.get("failed"):
        drawn = f"SHARDWISE_SAMPLE={selection.SAMPLE} SHARDWISE_DATE={selection.DATE}"
        terminalreporter.write_line(f"The same tests again: {drawn}")

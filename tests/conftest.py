"""The configuration of all tests: eight devices, and a hypothesis that repeats itself in CI."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections import Counter

from .devices import request_devices

request_devices()

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from . import compiled  # noqa: E402

# Traced programs are many small objects that stay: looking at all of them again takes a twentieth
# of the time of the tests.
gc.set_threshold(100_000, 50, 100)

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


ONCE = (
    "tests/check/test_cli_check.py",
    "tests/check/test_corpus.py::test_the_right_one",
    "tests/check/test_plugin.py",
    "tests/campaigns",
    "tests/cli",
    "tests/evaluate/test_evaluate_at_rest.py",
    "tests/evaluate/test_evaluate_journal.py",
    "tests/evaluate/test_evaluate_memory.py",
    "tests/evaluate/test_evaluate_stream.py",
    "tests/evaluate/test_evaluate_sums.py",
    "tests/evaluate/test_evaluate_surface.py",
    "tests/evaluate/test_evaluate_values.py",
    "tests/evaluate/test_evaluate_weights.py",
    "tests/explain/test_cost.py",
    "tests/explain/test_figures.py",
    "tests/explain/test_page.py",
    "tests/fuzz/test_fuzz.py::test_simulated_is_real[1]",
    "tests/hosts/test_hosts_train.py::test_the_example",
    "tests/hosts/test_launch.py",
    "tests/test_wrong_calls.py",
    "tests/meaning/test_programs.py",
    "tests/inspect/test_inspect_page.py",
    "tests/practice/test_hostile.py",
    "tests/practice/test_judge.py",
    "tests/practice/test_practice_cli.py",
    "tests/practice/test_watch.py",
    "tests/practice/test_web.py",
    "tests/test_cli.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_layers.py",
    "tests/test_messages.py",
    "tests/train/test_at_rest.py",
    "tests/train/test_fit.py",
    "tests/train/test_pitfalls.py",
    "tests/train/test_trajectories.py::test_a_linen_cnn_with_batch_statistics_and_dropout[real 2]",
    "tests/train/test_trajectories.py::test_an_nnx_transformer_with_masked_tokens[real 2]",
    "tests/train/test_trajectories.py::test_an_nnx_transformer_with_masked_tokens[virtual 64]",
)
"""Tests that say little more on a second version of JAX: CI has twenty minutes for both."""

SAMPLED = ("tests/check/test_corpus.py",)
"""Tests over many programs: every second of them runs on a second version."""

DEALT = (
    "tests/check/",
    "tests/conformance/",
    "tests/explain/test_every_program.py",
    "tests/inspect/",
    "tests/meaning/",
    "tests/test_primitives.py",
    "tests/train/test_placing.py",
    "tests/train/test_step.py",
    "tests/train/test_trajectories.py",
)
WHOLE = (
    "tests/check/test_cli_check.py",
    "tests/check/test_corpus.py",
    "tests/check/test_plugin.py",
    "tests/conformance/test_table.py",  # it deals by itself
)
"""Tests of one thing in many forms, but for those: the forms are dealt out, one to the first
version of JAX, the next to the second."""

CLUSTER = (
    "tests/hosts/test_hosts_evaluate.py::test_broken_off",
    "tests/hosts/test_hosts_evaluate.py::test_every_process_has_the_bits_of_one",
    "tests/hosts/test_hosts_train.py::test_bad_input",
    "tests/hosts/test_hosts_train.py::test_rows_of_their_own_are_one_batch",
    "tests/hosts/test_hosts_train.py::test_terminated",
    "tests/hosts/test_leaving.py::test_a_value",
    "tests/hosts/test_leaving.py::test_one_step",
    "tests/hosts/test_leaving.py::test_when_jax",
    "tests/hosts/test_leaving.py::test_work_alone",
)
"""Tests of several processes that compute for long, or are killed and started again: `make
cluster`, which CI runs."""


def pytest_collection_modifyitems(items):
    """Mark them, so that `-m` can leave them out."""
    dealt: Counter[str] = Counter()
    for item in items:
        for mark, tests in {"once": ONCE, "cluster": CLUSTER}.items():
            if item.nodeid.startswith(tests):
                item.add_marker(mark)
        if item.nodeid.startswith(SAMPLED) and zlib.crc32(item.nodeid.encode()) % 2:
            item.add_marker("once")
        test, _, form = item.nodeid.partition("[")
        if not form or item.get_closest_marker("once"):
            continue
        if test.startswith(DEALT) and not test.startswith(WHOLE):
            item.add_marker("second" if dealt[test] % 2 else "once")
            dealt[test] += 1

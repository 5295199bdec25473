"""How the tests compile, which takes half of their time.

Most programs run once on a few numbers: nine of ten tests do without LLVM's optimizations, and
without XLA's newer emitters, which take twice as long (where XLA leaves the choice). And many
tests compile the same: what one run of the tests compiles is kept for as long as it runs, in JAX's
own persistent cache, in a folder of each worker. Nothing is kept between runs.
Processes that tests start do not share it by themselves: JAX writes files in place, and two
at once could read half of one. A test that starts one process at a time may hand it `shared()`.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import jax
from jax._src import compiler

FULLY = (
    "tests/campaigns",
    "tests/conformance/test_memory.py",
    "tests/evaluate/test_evaluate_sums.py::test_a_billion_values",
    "tests/hosts",
    "tests/test_examples.py::test_digits",
    "tests/train/test_at_rest.py",
    "tests/train/test_fit.py",
)
"""Tests of what XLA makes of a program, of bits that must not depend on it, and long runs."""

_folder: list[str] = []


def begin(folder: str | None = None) -> None:
    """Keep what is compiled from here on, in this process: in a folder of its own, or in this."""
    if folder is None:
        folder = tempfile.mkdtemp(prefix="shardwise-compiled-")
        _folder.append(folder)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def end() -> None:
    """Forget it."""
    while _folder:
        shutil.rmtree(_folder.pop(), ignore_errors=True)


def folder() -> str | None:
    """Where it is kept."""
    return _folder[-1] if _folder else None


def shared() -> dict[str, str]:
    """The environment of a process that takes part."""
    if not _folder:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": _folder[-1],
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@contextmanager
def quickly(test: str) -> Iterator[None]:
    """Compile in a hurry, unless the test is one of those that must not."""
    if test.startswith(FULLY) or zlib.crc32(test.encode()) % 10 == 0:
        yield
        return
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with mock.patch.object(compiler, "get_compile_options", _options_of_a_hurry):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


_options = compiler.get_compile_options


def _options_of_a_hurry(*args: Any, **kwargs: Any) -> Any:
    found = _options(*args, **kwargs)
    found.env_option_overrides = [*found.env_option_overrides, *_hurried().items()]
    return found


@cache
def _hurried() -> dict[str, str]:
    """Options that take effect here: some versions of XLA do not know them."""
    options = {"xla_cpu_use_fusion_emitters": "False"}
    try:
        with mock.patch.object(compiler, "get_compile_options", _options):
            jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return options

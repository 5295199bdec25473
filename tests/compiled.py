"""How the tests compile, which takes half of their time.

Most programs run once on a few numbers: nineteen of twenty tests do without LLVM's optimizations,
without XLA's newer emitters, which take twice as long (where XLA leaves the choice), and without
splitting a program among threads: the other cores run other tests. And many tests compile the same:
what a worker compiles it keeps for as long as it is asked for. Nothing is kept between runs. The
context that JAX lowers a program in is used a few times, as newer versions of JAX do by themselves.
Processes that tests start share a folder, JAX's own persistent cache, only where they run one at a
time: JAX writes files in place, and two at once could read half of one.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import jax
from jax._src import compilation_cache, compiler
from jax._src.interpreters import mlir

FULLY = (
    "tests/campaigns",
    "tests/conformance/test_lowered.py::test_a_long_chain",  # XLA's older emitters take for ever
    "tests/conformance/test_memory.py",
    "tests/evaluate/test_evaluate_sums.py::test_very_many_values",
    "tests/hosts",
    "tests/test_examples.py::test_digits",
    "tests/train/test_at_rest.py",
    "tests/train/test_fit.py",
)
"""Tests of what XLA makes of a program, of bits that must not depend on it, and long runs."""

KEPT = 512
"""How many programs a worker keeps."""

USES = 20
"""How often a context is used: what it has seen, it never forgets."""

_folder: list[str] = []
_programs: OrderedDict[str, Any] = OrderedDict()


def begin() -> None:
    """Keep what is compiled from here on: by this worker in memory, by its children in a folder."""
    _folder.append(tempfile.mkdtemp(prefix="shardwise-compiled-"))
    use(_folder[-1])
    compilation_cache.get_executable_and_time = _get  # type: ignore[assignment]
    compilation_cache.put_executable_and_time = _put  # type: ignore[assignment]
    mlir.make_ir_context = _Contexts(mlir.make_ir_context)  # type: ignore[assignment]


def _get(
    key: str, _options: Any, _backend: Any, _devices: Any, callbacks: Any = ()
) -> tuple[Any, int | None]:
    if key not in _programs or callbacks:  # those of a program belong to it
        return None, None
    _programs.move_to_end(key)
    return _programs[key], 0


def _put(key: str, _name: str, program: Any, *_: Any) -> None:
    _programs[key] = program
    if len(_programs) > KEPT:
        _programs.popitem(last=False)


class _Contexts(threading.local):
    """Makes a context every so often, for each thread."""

    def __init__(self, make: Any):
        self.make, self.context, self.left = make, None, 0

    def __call__(self) -> Any:
        if not self.left:
            self.context, self.left = self.make(), USES
        self.left -= 1
        return self.context


def use(folder: str) -> None:
    """Keep what this process compiles in a folder."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def end() -> None:
    """Forget it."""
    _programs.clear()
    while _folder:
        shutil.rmtree(_folder.pop(), ignore_errors=True)


def folder() -> str | None:
    """Where children keep it."""
    return _folder[-1] if _folder else None


@contextmanager
def quickly(test: str) -> Iterator[None]:
    """Compile in a hurry, unless the test is one of those that must not."""
    if test.startswith(FULLY) or zlib.crc32(test.encode()) % 20 == 0:
        yield
        return
    with in_a_hurry():
        yield


def hurried() -> bool:
    """Whether this test compiles in a hurry."""
    return jax.config.read("jax_disable_most_optimizations")


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """Compile so from here on."""
    before = hurried()
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with mock.patch.object(compiler, "get_compile_options", _options_of_a_hurry):
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


_options = compiler.get_compile_options


def _options_of_a_hurry(*args: Any, **kwargs: Any) -> Any:
    found = _options(*args, **kwargs)
    found.env_option_overrides = [*found.env_option_overrides, *_known().items()]
    return found


@cache
def _known() -> dict[str, str]:
    """Options that take effect here: some versions of XLA do not know them."""
    options = {"xla_cpu_use_fusion_emitters": "False", "xla_cpu_parallel_codegen_split_count": "1"}
    return {name: value for name, value in options.items() if _takes_effect(name, value)}


def _takes_effect(name: str, value: str) -> bool:
    try:
        with mock.patch.object(compiler, "get_compile_options", _options):
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True

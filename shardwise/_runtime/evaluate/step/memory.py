"""Choose a batch that fits, and recognise out-of-memory errors.

With `batch=None` a step has up to 64 MiB of each array, since larger copies are not faster, and 128
MiB in all, and is small enough that all but small data has 16 steps, so that transfer and compute
overlap. It is compiled, and if the memory analysis of the compiled program says that it does not
fit, it is reduced accordingly. The choice does not depend on the number of devices, since the bits
of the result depend on the batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...._base.errors import ShardwiseError, text_of
from ...._jax.failures import is_out_of_memory
from ..data.source import ExampleLeaf
from ..lanes import Lanes

_LEAF_BYTES = 64 << 20
_INPUT_BYTES = 128 << 20
_EXAMPLES = 1 << 20
_STEPS = 16
_LEAST = 64
_SHARE = 0.7  # of the free memory; the rest is for fragmentation and the compiler's own needs


def largest_useful(rows: list[ExampleLeaf], length: int) -> int:
    """Return the largest useful batch: a multiple of 64 if it is large, or all of small data."""
    limit = _LEAF_BYTES // max(1, *(row.size for row in rows))
    useful = min(_EXAMPLES, limit, _INPUT_BYTES // max(1, sum(row.size for row in rows)))
    return min(_even(useful), max(_floor(max(1, length // _STEPS)), min(_LEAST, length)))


def choose_batch(
    first: int, rows: list[ExampleLeaf], lanes: Lanes, compile_: Callable[[int], Any]
) -> int:
    """Return the largest batch, from `first` down, whose compiled step fits the free memory."""
    batch = first
    free = free_memory(lanes) * _SHARE
    while batch > 1:
        try:
            needed = _needed(compile_(batch), rows, batch, lanes)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            needed = 2 * free
        if needed <= free:
            break
        batch = min(batch // 2, _floor(max(1, int(batch * free / needed))))
    return batch


def _needed(compiled: Any, rows: list[ExampleLeaf], batch: int, lanes: Lanes) -> float:
    """Return bytes on one device: the inputs of all steps in flight, and what the program uses."""
    step = batch * sum(row.size for row in rows)
    inputs = lanes.depth(step) * step
    figures = compiled.memory_analysis()
    temporary = getattr(figures, "temp_size_in_bytes", 0) or 0
    return float(inputs + temporary)


def free_memory(lanes: Lanes) -> float:
    """Return the free bytes on the fullest device; for a CPU device its part of the host memory."""
    free = []
    for device in lanes.mesh.devices.flat:
        stats = device.memory_stats()
        if stats and "bytes_limit" in stats:
            free.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return float(min(free)) if free else _host_memory() / (2 * lanes.mesh.devices.size)


def _host_memory() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float(4 << 30)


def too_large(batch: int, error: BaseException) -> ShardwiseError:
    """Return the error about a step that does not fit and must not be made smaller."""
    single = batch == 1
    return ShardwiseError(
        f"a step of {batch} example{'s' * (not single)} does not fit: {_first_line(error)}",
        where="argument 'batch'",
        rule="" if single else "batch= is kept, since the bits of the result depend on it.",
        remedy="split the state over a mesh with a model axis."
        if single
        else f"batch={batch // 2}, or batch=None to choose it automatically.",
    )


def _first_line(error: BaseException) -> str:
    return (text_of(error).strip().splitlines() or [type(error).__name__])[0]


def _even(n: int) -> int:
    """Return the largest size of a batch that is at most n and divides well."""
    return n // _LEAST * _LEAST if n >= 4 * _LEAST else _floor(max(1, n))


def _floor(n: int) -> int:
    """Return the largest power of two that is at most n."""
    return 1 << (n.bit_length() - 1)

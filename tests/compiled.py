"""What one run of the tests compiles, kept for as long as it runs: many tests compile the same.

JAX's own persistent cache, in a folder of each worker, which goes with it. Nothing is kept between
runs. Processes that tests start do not share it by themselves: JAX writes files in place, and two
at once could read half of one. A test that starts one process at a time may hand it `shared()`.
"""

from __future__ import annotations

import shutil
import tempfile

_folder: list[str] = []


def begin() -> None:
    """Keep what is compiled from here on, in this process."""
    import jax

    _folder.append(tempfile.mkdtemp(prefix="shardwise-compiled-"))
    jax.config.update("jax_compilation_cache_dir", _folder[-1])
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def end() -> None:
    """Forget it."""
    while _folder:
        shutil.rmtree(_folder.pop(), ignore_errors=True)


def shared() -> dict[str, str]:
    """The environment of a process that takes part."""
    if not _folder:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": _folder[-1],
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

"""How XLA is to compile programs that run once."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys

# Nothing that makes a program faster is worth its time. A collective that waits for a device in
# vain takes the process down, soon.
CHEAP = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_collective_call_terminate_timeout_seconds=120",
)


@functools.cache
def environment() -> dict[str, str]:
    """The environment of a worker, with those of the flags that this XLA knows."""
    flags = list(CHEAP)
    while True:
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}
        start = [sys.executable, "-c", "import jax; jax.devices()"]
        tried = subprocess.run(start, env=env, capture_output=True, text=True)
        if tried.returncode == 0:
            return env
        # It stops at flags that it does not know, and names them.
        unknown = " ".join(re.findall(r"Unknown flags? in XLA_FLAGS: (.*)", tried.stderr))
        known = [flag for flag in flags if flag not in unknown]
        if known == flags:
            raise SystemExit(f"JAX does not start:\n{tried.stderr}")
        flags = known


def verify_alone() -> None:
    """Let MLIR check programs in the thread that asks for it.

    A thread of its own that finds a fault waits for Python, which waits for that thread: JAX hangs
    where it should refuse a program.
    """
    from jax._src.interpreters import mlir

    mlir.JaxIrContext.set_thread_pool = lambda self, pool: self.enable_multithreading(False)

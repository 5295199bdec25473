"""One configuration in a separate process: its device count, its compile, its resident memory.

The parent starts it with the configuration as JSON and talks to it by lines: `step` runs one
training step and answers with its seconds, `stats` answers with what is known of the whole process.
Workers that are not asked for anything sleep, so the parent can interleave their steps.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import jax
import workload


def start(config: dict[str, Any]) -> tuple[Any, list[Any], dict[str, Any]]:
    kind, shards = config["kind"], config["shards"]
    args: Any = (
        workload.make_params(config["width"]),
        *workload.make_batch(config["width"], config["batch"]),
    )
    if kind == "native":
        args = workload.place_native(shards, *args)
    step = jax.jit(workload.make_step(kind, shards, config["at_once"]))
    began = time.perf_counter()
    compiled = step.lower(*args).compile()
    seconds = time.perf_counter() - began
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return compiled, list(args), {"compile": seconds, "temporaries": temporaries}


def time_step(compiled: Any, args: list[Any]) -> dict[str, float]:
    """Run one step on the params of the last one, as training does."""
    began = time.perf_counter()
    loss, args[0] = jax.block_until_ready(compiled(*args))
    return {"seconds": time.perf_counter() - began, "loss": float(loss)}


def main() -> None:
    compiled, args, known = start(json.loads(sys.argv[1]))
    for line in sys.stdin:
        if line.strip() == "step":
            answer: dict[str, Any] = time_step(compiled, args)
        else:
            # ru_maxrss counts kilobytes on Linux and bytes on macOS.
            unit = 1 if sys.platform == "darwin" else 1024
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
            answer = {**known, "resident": peak, "jax": jax.__version__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

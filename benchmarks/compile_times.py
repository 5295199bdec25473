"""How long `jax.jit(sw.simulate(step))` takes to trace, lower and compile, by number of shards.

Started by `simulate.py`, in a separate process so that the first compile of a process, which
pays for much else, can be thrown away. Prints one JSON object: shards to seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import jax
import workload


def compile_seconds(shards: int, width: int, batch: int) -> float:
    jax.clear_caches()
    params = jax.eval_shape(lambda: workload.make_params(width))
    x, y = jax.eval_shape(lambda: workload.make_batch(width, batch))
    began = time.perf_counter()
    jax.jit(workload.simulated(shards, 1)).lower(params, x, y).compile()
    return time.perf_counter() - began


def main() -> None:
    request = json.loads(sys.argv[1])
    counts, width, batch = request["shards"], request["width"], request["batch"]
    compile_seconds(counts[0], width, batch)
    rounds = [
        {shards: compile_seconds(shards, width, batch) for shards in counts}
        for _ in range(request["rounds"])
    ]
    medians = {shards: statistics.median(found[shards] for found in rounds) for shards in counts}
    print(json.dumps(medians))


if __name__ == "__main__":
    main()

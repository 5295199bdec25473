"""Several processes: evaluate on 1, 2 and 4 of them, and a step on 2 against one by hand.

Every process has one CPU device. The processes share the machine's cores, so the time per example
cannot fall where there are more processes than cores; it should not rise either.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Launch the jobs below and print their tables."""
    import report  # not in the jobs

    print("| processes | examples/s | result |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        bits = set()
        for count in (1, 2, 4):
            found = _launch(count, "evaluate", folder)
            bits.add(found["bits"])
            print(f"| {count} | {found['rate']:,.0f} | {found['bits']} |")
        print(f"\nThe same bits on all: {len(bits) == 1}\n")
        step = _launch(2, "step", folder)
        print("| a step on 2 processes | ms | against the one by hand |\n|---|---|---|")
        for name, value in step.items():
            print(f"| {name} | {1e3 * value:.2f} | {value / step['by hand']:.2f} × |")
        print()
        own = next(value for name, value in step.items() if name != "by hand")
        report.conclude(
            [report.Target("a step on 2 processes / by hand", own / step["by hand"], 1.05)]
        )


def _launch(count: int, what: str, folder: str) -> dict:
    path = Path(folder) / f"{what}-{count}.json"
    command = [sys.executable, "-c", "from shardwise._cli import main; main()", "launch",
               "--processes", str(count), "--devices", "1", __file__, what, str(path)]  # fmt: skip
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())


def evaluate(path: str) -> None:
    """Evaluate a small network over a million examples."""
    import shardwise as sw

    me = sw.connect()
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    data = rng.standard_normal((1 << 20, 32)).astype(np.float32)
    params = [rng.standard_normal((32, 128)).astype(np.float32),
              rng.standard_normal((128, 8)).astype(np.float32)]  # fmt: skip

    def fn(params, batch):
        return jnp.square(jnp.tanh(batch @ params[0]) @ params[1]).mean(-1)

    sw.evaluate(fn, params, data[: 1 << 16], batch=8192, progress=False)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        result = sw.evaluate(fn, params, data, batch=8192, progress=False)
        seconds.append(time.perf_counter() - began)
    if me.first:
        rate = len(data) / min(seconds)
        Path(path).write_text(json.dumps({"rate": rate, "bits": float(result).hex()}))


def step(path: str) -> None:
    """A step of `data_parallel` and the same step written by hand, in turns."""
    import shardwise as sw

    me = sw.connect()
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 256)).astype(np.float32)
    y = rng.standard_normal((512, 16)).astype(np.float32)
    params = {"in": rng.standard_normal((256, 512)).astype(np.float32) / 16,
              "out": rng.standard_normal((512, 16)).astype(np.float32) / 22}  # fmt: skip
    optimizer = optax.adam(1e-3)

    def loss(params, batch):
        return jnp.square(jax.nn.gelu(batch[0] @ params["in"]) @ params["out"] - batch[1]).mean(-1)

    made = sw.data_parallel(loss, optimizer, feed="own")
    mesh = made.mesh
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def spread(leaf):
        leaf = np.asarray(leaf)
        return jax.make_array_from_callback(leaf.shape, everywhere, lambda i: leaf[i])

    @jax.jit
    def by_hand(params, state, batch):
        def body(params, x, y):
            def mean(params):
                return jax.lax.pmean(loss(params, (x, y)).mean(), "data")

            return jax.value_and_grad(mean)(params)

        value, grads = jax.shard_map(
            body, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P()
        )(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    own = (x, y)
    state = made.init(params)
    hand = jax.tree.map(spread, params)
    hand_state = jax.tree.map(spread, optimizer.init(params))

    def run_made():
        nonlocal state
        state, metrics = made(state, own)
        return metrics["loss"]

    def run_hand():
        nonlocal hand, hand_state
        batch = tuple(
            jax.make_array_from_process_local_data(split, leaf, (1024, leaf.shape[1]))
            for leaf in own
        )
        hand, hand_state, value = by_hand(hand, hand_state, batch)
        return value

    times: dict[str, list[float]] = {"by hand": [], "data_parallel": []}
    for round_ in range(40):
        for name, call in (("by hand", run_hand), ("data_parallel", run_made)):
            began = time.perf_counter()
            for _ in range(5):
                value = call()
            value.block_until_ready()
            if round_ > 3:
                times[name].append((time.perf_counter() - began) / 5)
    if me.first:
        found = {name: statistics.median(values) for name, values in times.items()}
        Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"evaluate": evaluate, "step": step}[sys.argv[1]](sys.argv[2])
    else:
        main()

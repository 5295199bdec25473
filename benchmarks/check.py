"""How long `sw.check` of a transformer's training step takes, right and wrong.

    python benchmarks/check.py                  # six layers scanned, one row per device, 12 unrolled
    python benchmarks/check.py --only scanned   # one of them
    python benchmarks/check.py --size small     # larger layers, in which running counts

The check is on 1, 2, 4 and 8 devices. Its time is given in units of compiling and running the plain
program once, measured right before it. Each check is of a function that has not been seen before, as
in a test suite. What check sees of errors in single elements: `python -m tests.check.plant`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import forms
import jax
import report
import transformer
from jax import lax
from jax.sharding import PartitionSpec as P
from report import Target

import shardwise as sw

MESH = {"data": [1, 2, 4, 8]}
RIGHT, WRONG = 2.5, 3.0
"""How many times the plain program a check may take."""

Loss = Callable[[Any, Any], Any]


def unrolled(params: Any, tokens: Any) -> Any:
    """The loss with its layers one after the other, not in a scan."""

    def body(x: Any, layers: Any) -> tuple[Any, None]:
        for index in range(layers["first"].shape[0]):
            x = transformer.layer(x, jax.tree.map(lambda leaf, at=index: leaf[at], layers))
        return x, None

    scan = lax.scan
    try:
        lax.scan = lambda f, x, layers: body(x, layers)  # pyright: ignore
        return transformer.mean_loss(params, tokens)
    finally:
        lax.scan = scan


def plain(loss: Loss) -> Callable[..., Any]:
    """The step on one device."""
    return lambda params, tokens: forms.descend(params, jax.grad(loss)(params, tokens))


def sharded(loss: Loss, right: bool) -> Callable[..., Any]:
    """The same on a mesh; wrong, it averages a gradient that autodiff has already summed."""

    def body(params: Any, tokens: Any) -> Any:
        if right:
            grads = jax.grad(lambda p: lax.pmean(loss(p, tokens), "data"))(params)
        else:
            grads = lax.pmean(jax.grad(loss)(params, tokens), "data")
        return forms.descend(params, grads)

    def step(params: Any, tokens: Any, *, mesh: Any) -> Any:
        specs = (P(), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(params, tokens)

    return step


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = jax.block_until_ready(run())
    return time.perf_counter() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description="What a check costs, in plain programs.")
    parser.add_argument("--size", choices=transformer.SIZES, default="tiny")
    parser.add_argument("--only", choices=["scanned", "one row per device", "unrolled"])
    asked = parser.parse_args()
    size = transformer.SIZES[asked.size]
    cases = {
        "scanned": (transformer.mean_loss, dataclasses.replace(size, layers=6)),
        "one row per device": (transformer.mean_loss, dataclasses.replace(size, layers=6, batch=8)),
        "unrolled": (unrolled, dataclasses.replace(size, layers=12)),
    }
    rows, targets = [], []
    for name, (loss, own) in cases.items():
        if asked.only not in (None, name):
            continue
        args = transformer.make(own)
        for right in (True, False):
            jax.clear_caches()
            one, _ = seconds(lambda loss=loss, args=args: jax.jit(plain(loss))(*args))
            step = sharded(loss, right)
            took, verdict = seconds(lambda step=step, args=args: sw.check(step, *args, mesh=MESH))
            if verdict.ok is not right:
                raise AssertionError(str(verdict))
            what = f"{name}, {'right' if right else 'wrong, with the line'}"
            rows.append([what, f"{one:.2f} s", f"{took:.2f} s", f"{took / one:.1f}"])
            limit = RIGHT if right else WRONG
            targets.append(Target(f"check, {what} / compile and run", took / one, limit))
    print(report.machine("CPU", jax.__version__) + "\n")
    header = ["check on 1, 2, 4, 8", "compile and run", "check", "ratio"]
    print(report.table(header, rows) + "\n")
    report.conclude(targets)


if __name__ == "__main__":
    main()

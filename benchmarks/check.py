"""Measure `sw.check` of a transformer's training step, right and wrong.

    python benchmarks/check.py                  # six layers scanned, one row per device, 12 unrolled
    python benchmarks/check.py --only scanned   # one of them
    python benchmarks/check.py --size small     # larger layers, in which running counts

The check is on 1, 2, 4 and 8 devices. Its time is given in units of compiling and running the plain
program once, measured right before it, in seconds of the processor, which other programs on the machine
do not change; the time that passed stands beside it. Each check is of a function that has not been seen
before, as in a test suite. Then `shardwise check` of the README's first program from a cold start.
What check sees of errors in single elements: `python -m tests.check.plant --jobs 16`.
"""  # noqa: E501

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import subprocess
import sys
import tempfile
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


@dataclasses.dataclass(frozen=True)
class Took:
    """CPU seconds and elapsed seconds."""

    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.cpu:.2f} s ({self.wall:.2f} s)"


def seconds(run: Callable[[], Any], who: int = resource.RUSAGE_SELF) -> tuple[Took, Any]:
    """Return the seconds that a call takes, child processes included, and its result."""
    began, used = time.perf_counter(), _used(who)
    found = jax.block_until_ready(run())
    return Took(_used(who) - used, time.perf_counter() - began), found


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


COLD = 5.0
"""Seconds of the processor for the README's program, on cores on which importing JAX takes 4.3."""

CASE = """

@sw.case(mesh={"data": [1, 2, 4, 8]})
def training():
    w, x, y = jnp.array([1.0, 2.0]), jnp.arange(16.0).reshape(8, 2), jnp.ones(8)
    return gradient, (w, x, y)
"""


def cold() -> tuple[Took, Took]:
    """`shardwise check` of the README's first program, and importing JAX, each in a new process.

    Both run twice, and the second time counts: the first writes the compiled Python files.
    """
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    program = readme.split("```python\n", 1)[1].split("\nw, x, y =", 1)[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "step.py").write_text(program + CASE)
        check = [sys.executable, "-m", "shardwise", "check", "step.py"]
        alone = [sys.executable, "-c", "import jax, jax.numpy"]
        took = []
        for command in (check, alone):
            _process(command, folder)
            last, done = seconds(lambda: _process(command, folder), resource.RUSAGE_CHILDREN)
            took.append(last)
            if command is check and "SW401" not in done.stdout:
                raise AssertionError(done.stdout + done.stderr)
    return took[0], took[1]


def _process(command: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a check costs, in plain programs.")
    parser.add_argument("--size", choices=transformer.SIZES, default="tiny")
    parser.add_argument("--only", choices=["scanned", "one row per device", "unrolled", "cold"])
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
            ratio = took.cpu / one.cpu
            rows.append([what, str(one), str(took), f"{ratio:.2f} ({took.wall / one.wall:.2f})"])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
            limit = RIGHT if right else WRONG
            targets.append(Target(f"check, {what} / compile and run", ratio, limit))
    if asked.only in (None, "cold"):
        took, alone = cold()
        rows.append(["the README's program, cold", f"import jax: {alone}", str(took), "–"])
        targets.append(Target("shardwise check of the README's program, seconds", took.cpu, COLD))
    print(report.machine("CPU", jax.__version__) + "\n")
    header = ["check on 1, 2, 4, 8: CPU (wall)", "compile and run", "check", "ratio"]
    print(report.table(header, rows) + "\n")
    report.conclude(targets)


if __name__ == "__main__":
    main()

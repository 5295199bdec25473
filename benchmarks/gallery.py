"""The programs of `examples/` in larger sizes: what eight shards take, against eight devices.

    python benchmarks/gallery.py                    # all of them, in two minutes
    python benchmarks/gallery.py pipeline zero      # these
    python benchmarks/gallery.py --at-once 2 4 8    # besides one by one, so many at once

In most of them the devices meet in every layer or in every turn of a loop, so that something of all
of them has to be kept. What may be kept is what the devices keep, all together: their temporaries,
by XLA's own figure, eight times over. The other peer is the same program on a mesh of one device.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import jax.numpy as jnp
import report
from forms import measure
from report import Target

import shardwise as sw

DEVICES = jax.device_count()

SIZES: dict[str, dict[str, int]] = {
    "data_parallel": {"examples": 4096, "features": 512, "hidden": 2048, "targets": 512},
    "zero": {"examples": 2048, "features": 512, "hidden": 2048, "targets": 512},
    "tensor_parallel": {"examples": 1024, "features": 512, "hidden": 4096, "targets": 512},
    "transformer_2d": {
        "examples": 32, "length": 128, "features": 256, "heads": 8, "head": 32, "hidden": 1024,
    },
    "pipeline": {"layers": 16, "microbatches": 16, "size": 128, "features": 512},
    "ring_attention": {"length": 2048, "heads": 8, "features": 64},
    "mixture_of_experts": {
        "groups": 128, "size": 128, "features": 256, "hidden": 1024, "count": 16,
    },
}  # fmt: skip

MESHES = {"transformer_2d": {"data": 4, "model": 2}}
"""Where there is more than one axis."""

FORWARD = ("ring_attention", "mixture_of_experts")
"""Those that end with a forward pass: what is measured is their gradient."""


def program(name: str) -> tuple[Any, Any]:
    """A step of an example, and what it takes."""
    example = importlib.import_module(name)
    args = example.example_args(**SIZES[name])
    if name not in FORWARD:
        return example.step, args

    def gradient(*args: Any, mesh: Any) -> Any:
        def mean(args: Any) -> jax.Array:
            first = jax.tree.leaves(example.step(*args, mesh=mesh))[0]
            return jnp.mean(first**2)

        return jax.value_and_grad(mean)(args)

    return gradient, args


def steps(name: str, more: Sequence[int] = ()) -> tuple[dict[str, Any], Any]:
    """The forms of an example that are compared; `more` are numbers of shards at once."""
    step, args = program(name)
    sizes = MESHES.get(name) or dict.fromkeys(importlib.import_module(name).AXES, DEVICES)
    virtual = sw.mesh(**sizes)
    forms = {
        "one": lambda *args: step(*args, mesh=mesh(dict.fromkeys(sizes, 1))),
        "devices": lambda *args: step(*args, mesh=mesh(sizes)),
        **{f"at_once={k}": sw.simulate(step, mesh=virtual, at_once=k) for k in (1, *more)},
        "auto": sw.simulate(step, mesh=virtual, at_once="auto"),
    }
    return {key: with_number(form) for key, form in forms.items()}, args


def mesh(sizes: dict[str, int]) -> jax.sharding.Mesh:
    """Devices of this machine."""
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    devices = jax.devices()[: math.prod(sizes.values())]
    return jax.make_mesh((*sizes.values(),), (*sizes,), axis_types=types, devices=devices)


def with_number(step: Any) -> Any:
    """A step whose loss stands in front of all that it gives."""

    def numbered(*args: Any) -> tuple[jax.Array, Any]:
        outs = step(*args)
        return next(leaf for leaf in jax.tree.leaves(outs) if leaf.shape == ()), outs

    return numbered


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SIZES))
    parser.add_argument("--rounds", type=int, default=5, help="steps timed per form; 0 for none")
    parser.add_argument("--at-once", type=int, nargs="*", default=[], metavar="K")
    asked = parser.parse_args()
    rows, found = [], []
    for name in asked.names or SIZES:
        print(f"... {name}", file=sys.stderr, flush=True)
        forms, args = steps(name, asked.at_once)
        ready = measure(forms, args, asked.rounds)
        losses = [each.loss for each in ready.values() if each.times]
        if losses and max(losses) - min(losses) > 1e-3 * abs(losses[0]):
            raise SystemExit(f"{name}: the forms end at different losses: {losses}")
        together = DEVICES * ready["devices"].temporaries
        simulated = [each for key, each in ready.items() if key not in ("one", "devices")]
        rows.append(
            [
                name,
                *(report.milliseconds(each.seconds) for each in ready.values()),
                *map(report.megabytes, (ready["one"].temporaries, together)),
                *(report.megabytes(each.temporaries) for each in simulated),
            ]
        )
        ratio = ready["at_once=1"].temporaries / together
        found.append(Target(f"temporaries, {name}, at_once=1 / the devices", ratio, 1.0))
    print(report.machine(jax.devices()[0].device_kind, jax.__version__) + f", {DEVICES} shards\n")
    several = [f"{k} at once" for k in asked.at_once]
    forms = ["one device", f"{DEVICES} devices", "one by one", *several, "auto"]
    header = ["example", *forms, "temporaries, one device", *forms[1:]]
    print(report.table(header, rows) + "\n")
    report.conclude(found)


if __name__ == "__main__":
    main()

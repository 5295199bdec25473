"""Measure time and memory of `sw.prove` for a training step of Llama-3.1-405B's shapes.

    python benchmarks/prove.py                          # scanned, and 8 to all 126 layers unrolled
    python benchmarks/prove.py --unrolled 8 126         # others of them

Each row is a separate process: tracing on the mesh and on one device, both readings, and the
comparison, without the start of Python and JAX. Nothing is run, and no array is ever made. Times
are seconds of the processor, which other programs on the machine do not change; the time that
passed stands beside them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import llama
import report

import shardwise as sw

LAYERS = 126
ANY = "scanned, any size of data"
PEERS = [
    [
        "Scalify (arXiv 2509.10694)",
        "Llama-3.1-405B",
        "minutes, a commodity machine",
    ],
    ["TrainVerify (SOSP 2025)", "Llama-3.1-405B", "32 cores, 1 TB of memory"],
    ["GraphGuard (arXiv 2508.09505)", "rewriting of graphs", "no figure for 405B"],
]


def measure(form: str, layers: int, wrong: bool) -> dict[str, object]:
    """Prove one form of the step, here."""
    scanned = form != "unrolled"
    step = llama.make_step(scanned, wrong)
    args = llama.shapes(llama.Sizes(layers=layers), scanned)
    mesh = {"data": "n", "model": 8} if form == ANY else sw.mesh(data=64, model=8)
    began, used = time.perf_counter(), time.process_time()
    proof = sw.prove(step, *args, mesh=mesh, run=False)
    seconds, elapsed = time.process_time() - used, time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    code = proof.findings[0].code if proof.findings else ""
    sizes = f"on {len(proof.meshes)} meshes" if form == ANY else ""
    return {
        "status": proof.status,
        "seconds": seconds,
        "elapsed": elapsed,
        "bytes": peak,
        "operations": proof.operations,
        "code": code,
        "sizes": sizes,
    }


def apart(form: str, layers: int, wrong: bool = False) -> dict[str, object]:
    """Prove it in a separate process."""
    command = [sys.executable, __file__, "--one", form, str(layers), str(int(wrong))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [8, 16, 32, 64, LAYERS]
    parser.add_argument("--unrolled", type=int, nargs="+", default=every, help="how many layers")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        form, layers, wrong = asked.one
        print(json.dumps(measure(form, int(layers), wrong == "1")))
        return
    unrolled = asked.unrolled
    rows, found = [], {}
    plan = [("scanned", LAYERS, False), ("scanned", LAYERS, True), (ANY, LAYERS, False)]
    for form, layers, wrong in [*plan, *(("unrolled", n, False) for n in unrolled)]:
        one = apart(form, layers, wrong)
        found[form, layers, wrong] = one
        what = f"{form}, {layers} layers{', gradients summed again' if wrong else ''}"
        said = " ".join(str(one[name]) for name in ("status", "code", "sizes") if one[name])
        seconds, size = float(str(one["seconds"])), float(str(one["bytes"]))
        count = f"{one['operations']:,}"
        time_shown = f"{seconds:.1f} s ({float(str(one['elapsed'])):.1f} s)"
        rows.append([what, said, time_shown, report.megabytes(size), count])
    import jax

    print(report.machine("CPU", jax.__version__) + "\n")
    head = [
        "405B's shapes, data 64 x model 8",
        "said",
        "CPU (wall)",
        "memory",
        "operations",
    ]
    print(report.table(head, rows) + "\n")
    every = found[ANY, LAYERS, False]
    scanned, wrong_step = (found["scanned", LAYERS, wrong] for wrong in (False, True))
    targets = [
        report.Target("scanned, seconds / 5", float(str(scanned["seconds"])) / 5, 1.0),
        report.Target("scanned, bytes / 1 GB", float(str(scanned["bytes"])) / 1e9, 1.0),
        report.Target("any size of data, seconds / 30", float(str(every["seconds"])) / 30, 1.0),
        report.Target("wrong, seconds / 10", float(str(wrong_step["seconds"])) / 10, 1.0),
        report.Target("wrong, bytes / 1 GB", float(str(wrong_step["bytes"])) / 1e9, 1.0),
    ]
    if ("unrolled", LAYERS, False) in found:
        whole = float(str(found["unrolled", LAYERS, False]["seconds"]))
        targets.append(report.Target("all layers unrolled, seconds / 60", whole / 60, 1.0))
    first, last = (
        float(str(found["unrolled", n, False]["seconds"])) for n in (unrolled[0], unrolled[-1])
    )
    growth = last / first / (unrolled[-1] / unrolled[0])
    targets.append(report.Target("growth of time / growth of layers", growth, 1.1))
    report.conclude(targets)
    print()
    print(report.table(["published by others", "of", "with"], PEERS))


if __name__ == "__main__":
    main()

"""Many programs on several processes.

Each process runs a stretch of programs and is then replaced: memory does not grow, and a program
that takes XLA down with it, or hangs in it, takes one process and not the run.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

from .flags import environment
from .programs import groups, make

PER_WORKER = 300
SILENCE = 600.0
"""Seconds without a word after which a process is given up: compiling takes a few at most."""


def reports(seed: int, numbers: list[int], workers: int) -> Generator[dict[str, Any], None, None]:
    """What comes of the programs, in the order in which they end."""
    size = max(1, min(PER_WORKER, -(-len(numbers) // workers)))
    todo: queue.Queue[list[int]] = queue.Queue()
    for start in range(0, len(numbers), size):
        todo.put(numbers[start : start + size])
    said: queue.Queue[dict[str, Any] | None] = queue.Queue()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_serve, args=(seed, todo, said, stop), daemon=True)
        for _ in range(workers)
    ]
    for thread in threads:
        thread.start()
    running = workers
    try:
        while running:
            report = said.get()
            if report is None:
                running -= 1
            else:
                yield report
    finally:
        stop.set()
        for process in list(_LIVE):
            process.kill()
        for thread in threads:
            thread.join()


_LIVE: set[subprocess.Popen] = set()
"""The processes that run now."""


def _serve(
    seed: int,
    todo: queue.Queue[list[int]],
    said: queue.Queue[dict[str, Any] | None],
    stop: threading.Event,
) -> None:
    """Take stretches until none are left."""
    while not stop.is_set():
        try:
            numbers = todo.get_nowait()
        except queue.Empty:
            break
        for report in stretch(seed, numbers):
            if stop.is_set():
                break
            said.put(report)
    said.put(None)


def stretch(seed: int, numbers: list[int], shrink: bool = False) -> Iterator[dict[str, Any]]:
    """What one process after the other says of these programs, and what is said of dead ones."""
    left = groups(seed, numbers)
    while left:
        phase = "start"
        for report in _process(seed, left, shrink):
            phase = report.get("phase", phase)
            if "kind" in report:
                left[0].remove(report["number"])
                left = left if left[0] else left[1:]
                phase = "between"
            if "phase" not in report:
                yield report
        if left and phase != "between":
            group = left.pop(0)
            if len(group) == 1:
                yield _obituary(seed, group[0], phase)
            else:
                # One of them did it.
                half = len(group) // 2
                left[:0] = [group[:half], group[half:]]


def _obituary(seed: int, number: int, phase: str) -> dict[str, Any]:
    """XLA aborts or hangs on a few programs; if it does so for real, there is no oracle."""
    program = make(seed, number)
    kind = "hung" if phase == "real" else "wrong"
    why = f"the process died or hung ({phase})"
    features = sorted(program.features)
    script = program.script() if kind == "wrong" else ""
    told = {"kind": kind, "why": why, "error": 0.0, "features": features, "script": script}
    return {"number": number, **told}


def _process(seed: int, groups: list[list[int]], shrink: bool) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.fuzz", "--worker", "--seed", str(seed)]
    command += ["--numbers", ";".join(",".join(map(str, group)) for group in groups)]
    command += ["--shrink"] if shrink else []
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, env=environment(), **quiet)
    _LIVE.add(process)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    try:
        while (line := lines.get(timeout=SILENCE * (10 if shrink else 1))) is not None:
            yield json.loads(line)
    except queue.Empty:
        pass
    finally:
        process.kill()
        process.wait()
        _LIVE.discard(process)


def _read(stream: Any, lines: queue.Queue) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)

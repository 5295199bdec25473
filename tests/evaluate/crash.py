"""Kill -9 at random moments, resume, compare: is anything lost, done twice, or different?

    python -m tests.evaluate.crash --kills 50

A campaign starts one evaluation after another in child processes and kills each at a random moment,
on a random number of devices, until so many have been killed; whenever a run gets to its end, its
result is compared bit by bit with that of an unbroken run, and the next one starts over. After
every kill the journal is read: its steps must be whole, none of them there twice, and all those
that were there before still there, unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTH, BATCH = 100_003, 256
DEVICES = (1, 2, 3, 8)

Steps = dict[int, tuple[int, bytes]]


def child(journal: str, pause: float) -> None:
    """One evaluation, slowed down so that there is time to be killed; prints its result."""
    import jax.numpy as jnp
    import numpy as np

    from shardwise._evaluate import Max, Sum, evaluate

    from .helpers import Average

    started: list[bool] = []

    class Slow:
        shape, dtype = (LENGTH,), np.dtype(np.int32)

        def __getitem__(self, rows: slice) -> np.ndarray:
            if rows.stop - rows.start > 1 and not started:
                started.append(True)
                print("under way", flush=True)
            time.sleep(pause)
            return np.arange(rows.start, min(rows.stop, LENGTH), dtype=np.int32)

    def fn(w: Any, batch: Any, mask: Any) -> dict[str, Any]:
        values = jnp.sin(batch * w)
        return {
            "mean": values,
            "sum": Sum(batch),
            "max": Max(values),
            "object": Average.from_values(values, mask),
        }

    print("imported", flush=True)
    result = evaluate(fn, np.float32(0.37), Slow(), batch=BATCH, journal=journal, progress=False)
    # In hexadecimal, to the last bit.
    bits = {name: float(value).hex() for name, value in result.items()}
    print(json.dumps({"bits": bits, "count": result.count, "resumed": result.resumed}), flush=True)


def start(journal: Path, devices: int, pause: float) -> subprocess.Popen[str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    code = f"from tests.evaluate.crash import child; child({str(journal)!r}, {pause})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(journal: Path, devices: int) -> dict[str, Any]:
    """Run to the end and give the result."""
    process = start(journal, devices, 0.0)
    out, err = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(err)
    return json.loads(out.splitlines()[-1])


def read_steps(journal: Path) -> Steps:
    """The steps in a journal, as SQLite recovers them; raises if they are not whole."""
    if not journal.exists():
        return {}
    with sqlite3.connect(journal) as database:
        (verdict,) = database.execute("PRAGMA integrity_check").fetchone()
        assert verdict == "ok", verdict
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'steps'")
        found = (
            database.execute("SELECT start, rows, payload FROM steps ORDER BY start").fetchall()
            if tables.fetchone()
            else []
        )
    database.close()
    stop = 0
    for first, rows, _ in found:
        assert first >= stop, f"examples from {first} are there twice"
        stop = first + rows
    return {first: (rows, payload) for first, rows, payload in found}


def kill_one(journal: Path, rng: random.Random, say: Callable[[str], None]) -> bool:
    """Start a run and kill it; False if it got to its end first."""
    before = read_steps(journal)
    process = start(journal, rng.choice(DEVICES), rng.choice((0.002, 0.004, 0.008)))
    assert process.stdout is not None
    process.stdout.readline()
    if rng.random() < 0.8:  # the others are killed while they trace, compile or open the journal
        process.stdout.readline()
    time.sleep(rng.uniform(0.0, 1.5))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    after = read_steps(journal)
    for first, step in before.items():
        assert after.get(first) == step, f"the step at {first} was lost or changed"
    killed = process.returncode == -signal.SIGKILL
    say(f"{'killed' if killed else 'ended'}: {len(before)} -> {len(after)} steps")
    return killed


def campaign(kills: int, seed: int, folder: Path, say: Callable[[str], None]) -> dict[str, int]:
    """Kill so many runs; raises at the first difference."""
    rng = random.Random(seed)
    want = finish(folder / "unbroken.db", 1)
    journal, done, ends, redone = folder / "broken.db", 0, 0, 0
    while done < kills:
        done += kill_one(journal, rng, say)
        if len(read_steps(journal)) >= LENGTH // BATCH * rng.uniform(0.6, 1.0) or done == kills:
            held = sum(rows for rows, _ in read_steps(journal).values())
            got = finish(journal, rng.choice(DEVICES))
            assert got["bits"] == want["bits"], f"other bits: {got} instead of {want}"
            assert got["count"] == LENGTH
            redone += held - got["resumed"]
            for file in folder.glob("broken.db*"):
                file.unlink()
            ends += 1
            say(f"resumed with {held} of {LENGTH} examples: the same bits")
    assert redone == 0, f"{redone} finished examples were computed again"
    return {"kills": done, "runs compared": ends, "finished examples computed again": redone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(args.kills, args.seed, Path(folder), lambda line: print(line, flush=True))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

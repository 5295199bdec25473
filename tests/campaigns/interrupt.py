"""SIGINT and SIGTERM in every phase of a run: is it saved, told, quick, and never lost?

Each trial starts a run of some kind, sends it a signal in some phase of its life, and looks at how
it ended: with 128 and the signal's number, with one line that says what was saved, and after how
long. The same call must then come to the bits of an unbroken run.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import compiled
from . import forked, work

PAUSE = 0.05
LIMIT = 2.0
"""Seconds after which an end is counted as late; steps take hundredths of one."""
KEPT = r"(saved at step \d+ of|examples are in the journal|ended before)"

PHASES: dict[str, tuple[str, ...]] = {
    "starting": work.KINDS,
    "working": work.KINDS,
    "waiting for data": work.KINDS,
    "evaluating": work.TRAININGS,
    "a second Ctrl-C": work.KINDS,
}


def trial(kind: str, phase: str, signum: int, folder: Path, rng: random.Random) -> tuple[str, str]:
    """One signal: what came of it, and what it said."""
    options: dict[str, Any] = {}
    if phase == "a second Ctrl-C":
        options = {"progress" if kind in work.EVALUATIONS else "callbacks": work.hold}
    work.stuck_at = 18 if phase == "waiting for data" and kind in work.EVALUATIONS else -1
    work.stuck_at = 8 if phase == "waiting for data" and kind in work.TRAININGS else work.stuck_at
    child = forked.start(kind, folder, 1, PAUSE, **options)
    work.stuck_at = -1
    awaited = {"starting": "begun", "working": "drawing", "waiting for data": "stuck"}
    child.await_notice(awaited.get(phase, "held" if options else phase))
    time.sleep(rng.uniform(0.0, 1.5 if phase == "starting" else 0.2))
    sent = time.monotonic()
    child.kill(signum)
    if options:
        time.sleep(0.5)
        child.kill(signal.SIGINT)
    code = child.wait()
    seconds = time.monotonic() - sent - (0.5 if options else 0.0)
    said = child.said.read_text()
    return _judged(phase, signum, code, seconds, said), f"{seconds:.2f} s: {said.strip()[-200:]}"


def _judged(phase: str, signum: int, code: int, seconds: float, said: str) -> str:
    if phase == "starting" and said.startswith("Exception ignored in: <function _xla_gc_callback"):
        return SWALLOWED
    if "Traceback" in said:
        return "RAW"
    if phase == "a second Ctrl-C":
        return "ended at once" if code == 130 and "ended at once" in said else f"WRONG: code {code}"
    if code == 0:
        return "LOST"
    if code not in (128 + signum, -signum):
        return f"WRONG: code {code}"
    if not re.search(KEPT, said):  # only before the run has taken the signals to itself
        return "before it began" if phase == "starting" and not said else "UNTOLD"
    return "saved and told" if seconds < LIMIT else "saved and told, late"


SWALLOWED = "swallowed by JAX before it began"
"""Python's own handler raised in a callback of JAX's, which prints it and goes on; in a run of ours
the handler does not raise there."""

GOOD = (SWALLOWED, "saved and told", "saved and told, late", "ended at once", "before it began")


def campaign(
    count: int, seed: int, folder: Path, say: Callable[[str], None], kinds: tuple[str, ...]
) -> dict[str, Any]:
    """So many signals, spread over kinds, phases and both signals; each run is then finished."""
    rng = random.Random(seed)
    compiled.use(str(folder / "compiled"))
    whole = {}
    for kind in kinds:
        child = forked.start(kind, folder / f"{kind}-whole", 1, 0.0)
        assert child.wait() == 0, child.said.read_text()
        whole[kind] = child.bits()
    forked.keep_no_more()
    cases = [(p, k, s) for p, of in PHASES.items() for k in of for s in _SIGNALS if k in kinds]
    rng.shuffle(cases)
    counts: dict[str, Counter[str]] = {phase: Counter() for phase in PHASES}
    bad = []
    for number, (phase, kind, signum) in enumerate(itertools.islice(itertools.cycle(cases), count)):
        run = folder / "run"
        outcome, said = trial(kind, phase, signum, run, rng)
        again = forked.start(kind, run, 1, 0.0)
        if again.wait() or again.bits() != whole[kind]:
            outcome = f"DIFFERENT: {again.said.read_text()}"
        shutil.rmtree(run)
        counts[phase][outcome] += 1
        name = signal.Signals(signum).name
        line = f"{number}: {kind}, {phase}, {name}: {outcome}. {' '.join(said.split())}"
        say(line)
        if outcome not in GOOD:
            bad.append(line)
    return {"counts": {phase: dict(found) for phase, found in counts.items()}, "bad": bad}


_SIGNALS = (signal.SIGINT, signal.SIGTERM)

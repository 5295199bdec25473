"""Kill -9 at random moments, run again, compare: is anything lost, done twice, or different?

Runs of every kind are started and killed at random moments of their lives, on a random number of
devices, again and again on the same files, until one gets to its end: it must have the bits of an
unbroken run, and a log with every step and every evaluation once. After every kill the journal is
read, and what was finished before must be there still, unchanged.
"""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import compiled
from . import forked, work

DEVICES = (1, 3)
PAUSE = 0.02
EARLY = 0.25
"""The share of kills while a run still starts: opens its files, traces, compiles."""

Steps = dict[int, tuple[Any, ...]]


def read_steps(journal: Path) -> Steps:
    """The steps in a journal, as SQLite recovers them; raises if they are not whole."""
    if not journal.exists():
        return {}
    with sqlite3.connect(journal) as database:
        (verdict,) = database.execute("PRAGMA integrity_check").fetchone()
        assert verdict == "ok", verdict
        tables = database.execute("SELECT name FROM sqlite_master WHERE name = 'steps'")
        query = "SELECT start, rows, batch, payload, crc FROM steps ORDER BY start"
        found = database.execute(query).fetchall() if tables.fetchone() else []
    database.close()
    stop = 0
    for first, rows, *_ in found:
        assert first >= stop, f"examples from {first} are there twice"
        stop = first + rows
    return {first: tuple(rest) for first, *rest in found}


class Victim:
    """One kind of run, killed until it is done, then begun anew."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder / kind / "run"
        self.folder.parent.mkdir()
        self.counts: Counter[str] = Counter()
        self.bits, self.rows, self.before, self.working = None, [], 0.0, 0.0
        for devices in DEVICES:
            self._unbroken(devices)
        self.steps: Steps = {}

    def _unbroken(self, devices: int) -> None:
        """A run that is left alone, and how long it took before and after it began to work."""
        whole = forked.start(self.kind, self.folder.with_name("whole"), devices, PAUSE)
        assert whole.await_notice("drawing"), whole.said.read_text()
        begun = time.monotonic()
        assert whole.wait() == 0, whole.said.read_text()
        self.before, self.working = begun - whole.begun, time.monotonic() - begun
        bits, rows = whole.bits(), work.told_rows(self.folder.with_name("whole"))
        assert self.bits in (None, bits), f"{devices} devices give other bits"
        self.bits, self.rows = bits, rows
        shutil.rmtree(self.folder.with_name("whole"))

    def attack(self, rng: random.Random) -> str:
        """Start it and kill it; says what came of it. One that is nearly done is finished."""
        if self._is_nearly_done():
            return self.finish()
        child = forked.start(self.kind, self.folder, rng.choice(DEVICES), PAUSE)
        if rng.random() < EARLY:
            time.sleep(rng.uniform(0.0, 1.0) * self.before)
        elif child.await_notice("drawing"):
            time.sleep(rng.uniform(0.0, 0.8) * self.working)
        child.kill()
        code = child.wait()
        if code == 0:
            return self._compare(child)
        assert code == -signal.SIGKILL, f"{code}: {child.said.read_text()}"
        self.counts["kills"] += 1
        return self._look()

    def _is_nearly_done(self) -> bool:
        if self.kind in work.TRAININGS:
            return (self.folder / str(work.STEPS)).exists()
        return len(self.steps) > 0.9 * work.LENGTH / work.BATCH

    def finish(self) -> str:
        """Run to the end."""
        child = forked.start(self.kind, self.folder, 1, 0.0)
        assert child.wait() == 0, child.said.read_text()
        return self._compare(child)

    def _look(self) -> str:
        if self.kind in work.TRAININGS:
            stored = [int(p.name) for p in self.folder.glob("*") if p.name.isdigit()]
            strange = [p.name for p in self.folder.glob("*.before*")]
            assert not strange, f"a run that never began left {strange}"
            return f"killed; newest checkpoint {max(stored, default=None)}"
        steps = read_steps(self.folder / "journal.db")
        for first, step in self.steps.items():
            assert steps.get(first) == step, f"the step at {first} was lost or changed"
        said = f"killed: {len(self.steps)} -> {len(steps)} steps"
        self.steps = steps
        return said

    def _compare(self, child: forked.Child) -> str:
        assert child.bits() == self.bits, f"other bits: {child.bits()}\ninstead of {self.bits}"
        rows = work.told_rows(self.folder)
        assert rows == self.rows, f"another log: {rows}\ninstead of {self.rows}"
        shutil.rmtree(self.folder)
        self.steps = {}
        self.counts["runs compared"] += 1
        return "ended with the same bits"


def campaign(
    count: int, seed: int, folder: Path, say: Callable[[str], None], kinds: tuple[str, ...]
) -> dict[str, Any]:
    """So many kills over all kinds of runs; raises at the first difference."""
    rng = random.Random(seed)
    compiled.use(str(folder / "compiled"))
    victims = [Victim(kind, folder) for kind in kinds]
    forked.keep_no_more()
    done = 0
    while done < count:
        victim = victims[done % len(victims)]
        said = victim.attack(rng)
        say(f"{done}: {victim.kind}: {said}")
        done = sum(v.counts["kills"] for v in victims)
    for victim in victims:
        if victim.folder.exists():
            say(f"{victim.kind}: {victim.finish()}")
    return {"counts": {v.kind: dict(v.counts) for v in victims}, "bad": []}

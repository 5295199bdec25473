"""Flipped bits, files cut short, files deleted: is each harmless or named, and none silent?

A run is broken off half-way and what it left on disk is copied; each trial damages one file of the
copy and runs to the end. The end must have the bits of an unbroken run, or be an error of ours; and
where something was lost that will not be made again, such as rows of a log, it must have been told.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import ShardwiseError

from . import work

ACTIONS = ("flip", "flip", "flip", "cut", "delete")  # how often each is drawn
SECONDS = 120
HARMLESS, TOLD, REFUSED = "harmless", "reported and repaired", "clear error"
SILENT, RAW, STUCK = "SILENT", "RAW", "STUCK"
GOOD = (HARMLESS, TOLD, REFUSED)


@dataclass(frozen=True)
class Site:
    """Something to damage: the kind of run, what it left, what it should come to."""

    name: str
    kind: str
    folder: Path
    files: str
    bits: str
    rows: list[dict[str, Any]]

    def candidates(self, folder: Path) -> list[Path]:
        return sorted(p for p in folder.glob(self.files) if p.is_file() and p.stat().st_size)


class _Broken(Exception):
    """Raised in the middle of a run, to break it off."""


def break_off(kind: str, folder: Path) -> None:
    """Leave half a run behind."""
    if kind in work.TRAININGS:
        work.run(kind, folder, steps=work.STEPS // 2)
        return

    def stop(snapshot: Any) -> None:
        if snapshot.done > work.LENGTH // 2:
            raise _Broken

    with contextlib.suppress(_Broken):
        work.run(kind, folder, progress=stop)


def sites(folder: Path, kinds: tuple[str, ...]) -> list[Site]:
    """Half a run of each sort, and what the whole of it comes to."""
    found = []
    for kind, files in (
        ("arrays", {"journal": "journal.db"}),
        ("iterable", {"journal": "journal.db"}),
        ("plain", {"checkpoint": "[0-9]*/**/*", "log": "log.jsonl"}),
        ("nnx", {"checkpoint": "[0-9]*/**/*"}),
    ):
        if kind not in kinds:
            continue
        bits = work.run(kind, folder / f"{kind}-whole")["bits"]
        rows = work.told_rows(folder / f"{kind}-whole")
        half = folder / f"{kind}-half"
        break_off(kind, half)
        found += [Site(f"{n} ({kind})", kind, half, f, bits, rows) for n, f in files.items()]
    return found


def damage(path: Path, rng: random.Random) -> str:
    """Damage one file; says how."""
    action = rng.choice(ACTIONS)
    if action == "delete":
        path.unlink()
        return "deleted"
    content = bytearray(path.read_bytes())
    if action == "cut":
        size = rng.randrange(len(content))
        path.write_bytes(content[:size])
        return f"cut to {size} of {len(content)} bytes"
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} flipped"


def trial(site: Site, folder: Path, rng: random.Random) -> tuple[str, str, str]:
    """Damage a copy and run it: what was done, what came of it, what was said."""
    shutil.copytree(site.folder, folder)
    path = rng.choice(site.candidates(folder))
    done = f"{path.relative_to(folder)} {damage(path, rng)}"
    with warnings.catch_warnings(record=True) as caught, limit(SECONDS):
        warnings.simplefilter("always")
        try:
            result = work.run(site.kind, folder)
        except ShardwiseError as error:
            return done, REFUSED, str(error)
        except TimeoutError:
            return done, STUCK, f"no end after {SECONDS} s"
        except Exception as error:
            return done, RAW, f"{type(error).__name__}: {error}"
    told = "; ".join(str(w.message) for w in caught)
    if result["bits"] != site.bits:
        return done, SILENT, f"other bits; {told}"
    if work.told_rows(folder) != site.rows and not told:
        return done, SILENT, "another log"
    return done, TOLD if told else HARMLESS, told


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(
    count: int, seed: int, folder: Path, say: Callable[[str], None], kinds: tuple[str, ...]
) -> dict[str, Any]:
    """So many trials, spread over all sites."""
    from shardwise._base import progress as _progress
    from shardwise._runtime.evaluate.journal import journal

    _progress.CallbackView.every = journal._GROUP_SECONDS = 0.0  # break off where it is asked for
    rng = random.Random(seed)
    places = sites(folder, kinds)
    counts = {site.name: Counter() for site in places}
    bad = []
    for number in range(count):
        site = places[number % len(places)]
        copy = folder / "trial"
        done, outcome, said = trial(site, copy, rng)
        shutil.rmtree(copy)
        counts[site.name][outcome] += 1
        line = f"{number}: {site.name}: {done}: {outcome}. {' '.join(said.split())[:300]}"
        say(line)
        if outcome not in GOOD:
            bad.append(line)
    return {"counts": {name: dict(found) for name, found in counts.items()}, "bad": bad}

"""Whole files in the wrong place: renamed, copied, swapped between runs and times, cut, unreadable.

Nothing here changes a bit of what a run wrote, but by cutting files and taking rights away. Kept
are a run of each kind, half done, an earlier state of it, and a run with the same shapes and
other data. Each trial does something to a copy of the first and runs it to the end, which must
have the bits of an unbroken run, or be an error of ours. A result that is different because a
file was used that does not belong there, without a message, is what this looks for.
"""

from __future__ import annotations

import contextlib
import grp  # noqa: F401
import os
import pwd  # noqa: F401
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import ShardwiseError

from . import work
from .damage import GOOD, HARMLESS, RAW, REFUSED, SECONDS, SILENT, STUCK, TOLD, break_off, limit

USER = 65534
"""Who reads what root may not: root may read everything."""


@dataclass(frozen=True)
class Runs:
    """What is on disk of one kind of run: half done, earlier, of another run, and how it ends."""

    kind: str
    half: Path
    earlier: Path
    other: Path
    bits: str


def prepare(kind: str, folder: Path) -> Runs:
    """Make the runs of a kind."""
    bits = work.run(kind, folder / f"{kind}-whole")["bits"]
    half, earlier, other = (folder / f"{kind}-{name}" for name in ("half", "earlier", "other"))
    if kind in work.TRAININGS:
        work.run(kind, half, steps=work.EVERY)
        shutil.copytree(half, earlier)
        work.run(kind, half, steps=3 * work.EVERY)
        with work.other_data():
            work.run(kind, other, steps=3 * work.EVERY)
    else:
        break_off(kind, half)
        shutil.copytree(half, earlier)
        with work.other_data():
            break_off(kind, other)
    return Runs(kind, half, earlier, other, bits)


def steps_of(folder: Path) -> list[Path]:
    """The checkpoints in a folder, or the files of a journal, in order."""
    found = [p for p in folder.iterdir() if p.name.isdigit()]
    return sorted(found, key=lambda p: int(p.name)) or sorted(folder.glob("journal.db*"))


def files_of(folder: Path) -> list[Path]:
    """All files in a folder."""
    return sorted(p for p in folder.rglob("*") if p.is_file())


def rename(folder: Path, runs: Runs, rng: random.Random) -> str:
    one = rng.choice(steps_of(folder))
    new = _new_name(one, rng)
    if new.exists():
        shutil.rmtree(new) if new.is_dir() else new.unlink()
    one.rename(new)
    return f"{one.name} renamed to {new.name}"


def copy(folder: Path, runs: Runs, rng: random.Random) -> str:
    one = rng.choice(steps_of(folder))
    new = _new_name(one, rng)
    _put(one, new)
    return f"{one.name} copied to {new.name}"


def swap(folder: Path, runs: Runs, rng: random.Random) -> str:
    """Two files or folders of one run change places."""
    found = steps_of(folder) if rng.random() < 0.5 else files_of(folder)
    one, other = rng.sample(found, 2) if len(found) > 1 else (found[0], found[0])
    aside = folder / "aside"
    one.rename(aside)
    if other != one:
        other.rename(one)
    aside.rename(other)
    return f"{one.relative_to(folder)} and {other.relative_to(folder)} swapped"


def foreign(folder: Path, runs: Runs, rng: random.Random) -> str:
    """Something of another run with the same shapes, in its place or under another name."""
    one = rng.choice([*steps_of(runs.other), *files_of(runs.other)])
    place = folder / one.relative_to(runs.other)
    if place.name.isdigit() and rng.random() < 0.5:
        place = folder / str(rng.choice([1, 4, 10, 11, 1000]))
    _put(one, place)
    return f"{place.relative_to(folder)} of another run"


def old(folder: Path, runs: Runs, rng: random.Random) -> str:
    """A file as it was earlier in this run."""
    one = rng.choice(files_of(runs.earlier))
    _put(one, folder / one.relative_to(runs.earlier))
    return f"{one.relative_to(runs.earlier)} as it was earlier"


def cut(folder: Path, runs: Runs, rng: random.Random) -> str:
    one = rng.choice([p for p in files_of(folder) if p.stat().st_size])
    size = rng.randrange(one.stat().st_size)
    os.truncate(one, size)
    return f"{one.relative_to(folder)} cut to {size} bytes"


def remove(folder: Path, runs: Runs, rng: random.Random) -> str:
    one = rng.choice([*steps_of(folder), *files_of(folder)])
    shutil.rmtree(one) if one.is_dir() else one.unlink()
    return f"{one.relative_to(folder)} removed"


def forbid(folder: Path, runs: Runs, rng: random.Random) -> str:
    """Rights are taken away, from a file or a folder."""
    one = rng.choice([p for p in folder.rglob("*") if p.exists()])
    mode = rng.choice([0o000, 0o400 if one.is_file() else 0o500])
    one.chmod(mode)
    return f"{one.relative_to(folder)} has mode {mode:03o}"


ACTIONS = (rename, copy, swap, foreign, foreign, old, cut, remove, forbid)


def _new_name(one: Path, rng: random.Random) -> Path:
    if one.name.isdigit():
        names = ["1", "3", "6", "9", "10", "11", "12", "1000", "09", "x"]
    else:
        names = ["journal.db.p1", "journal.db.p2", "journal.db-wal", "x.db"]
    return one.with_name(rng.choice([name for name in names if name != one.name]))


def _put(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


@contextlib.contextmanager
def as_user(folder: Path) -> Iterator[None]:
    """Root reads everything: be another user meanwhile, who owns the folder.

    That user may not be able to read Python's own modules, if they are in root's home: those that
    Orbax imports late, `grp` and `pwd`, are imported above.
    """
    if os.geteuid():
        yield
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, USER, USER, follow_symlinks=False)
    os.seteuid(USER)
    try:
        yield
    finally:
        os.seteuid(0)


def trial(runs: Runs, folder: Path, rng: random.Random, action: Any) -> tuple[str, str, str]:
    """Do something to a copy and run it: what was done, what came of it, what was said."""
    shutil.copytree(runs.half, folder)
    with as_user(folder) if action is forbid else contextlib.nullcontext():
        done = action(folder, runs, rng)
        with warnings.catch_warnings(record=True) as caught, limit(SECONDS):
            warnings.simplefilter("always")
            try:
                result = work.run(runs.kind, folder)
            except ShardwiseError as error:
                return done, REFUSED, str(error)
            except TimeoutError:
                return done, STUCK, f"no end after {SECONDS} s"
            except Exception as error:
                return done, RAW, f"{type(error).__name__}: {error}"
    said = "; ".join(str(w.message) for w in caught)
    if result["bits"] != runs.bits:
        return done, SILENT, f"other bits; {said}"
    return done, TOLD if said else HARMLESS, said


def campaign(
    count: int, seed: int, folder: Path, say: Callable[[str], None], kinds: tuple[str, ...]
) -> dict[str, Any]:
    """So many trials, spread over kinds and actions."""
    from shardwise._base import progress as _progress
    from shardwise._runtime.evaluate.journal import journal

    _progress.CallbackView.every = journal._GROUP_SECONDS = 0.0  # break off where it is asked for
    rng = random.Random(seed)
    folder.chmod(0o755)
    places = [prepare(kind, folder) for kind in kinds if kind in ("arrays", "plain", "nnx")]
    counts = {action.__name__: Counter() for action in ACTIONS}
    bad = []
    for number in range(count):
        runs = places[number % len(places)]
        action = ACTIONS[(number // len(places)) % len(ACTIONS)]
        copy_of = folder / "trial"
        done, outcome, said = trial(runs, copy_of, rng, action)
        for path in (copy_of, *(place for place, _, _ in os.walk(copy_of))):
            os.chmod(path, 0o700)  # as an ordinary user could not delete it otherwise
        shutil.rmtree(copy_of)
        counts[action.__name__][outcome] += 1
        line = f"{number}: {runs.kind}: {done}: {outcome}. {' '.join(said.split())[:300]}"
        say(line)
        if outcome not in GOOD:
            bad.append(line)
    return {"counts": {name: dict(found) for name, found in counts.items()}, "bad": bad}

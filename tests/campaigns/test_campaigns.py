"""The shortest of the campaigns; `python -m tests.campaigns` runs all of them, at length."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from . import damage

ROOT = Path(__file__).parents[2]


def test_a_short_campaign():
    """In a process of its own: runs are forked from it, which one that has devices cannot do."""
    command = [sys.executable, "-m", "tests.campaigns", "signal", "--count", "2"]
    done = subprocess.run(
        [*command, "--seed", "7", "--kinds", "iterable"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 trials" in done.stdout


def test_files_in_wrong_places():
    """Each action once, on a journal and on checkpoints."""
    command = [sys.executable, "-m", "tests.campaigns", "places", "--count", "18"]
    done = subprocess.run(
        [*command, "--seed", "3", "--kinds", "arrays", "plain"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "18 trials" in done.stdout
    assert "is foreign" in done.stdout


def test_damage_is_done(tmp_path):
    """What a campaign claims to have done, it did."""
    path, seen = tmp_path / "file", set()
    rng = random.Random(0)
    for _ in range(40):
        path.write_bytes(bytes(range(64)))
        said = damage.damage(path, rng)
        seen.add(said.split()[0])
        assert not path.exists() or path.read_bytes() != bytes(range(64))
    assert seen == {"bit", "cut", "deleted"}


def test_what_is_silent_is_called_so(tmp_path, monkeypatch):
    """A run that comes to other bits, or fails with a raw error, is not counted as good."""
    site = damage.Site("journal", "arrays", tmp_path / "half", "*.db", "right", [])
    site.folder.mkdir()
    (site.folder / "journal.db").write_bytes(b"something")

    def outcome(run):
        monkeypatch.setattr(damage.work, "run", run)
        copy = tmp_path / "copy"
        found = damage.trial(site, copy, random.Random(0))[1]
        damage.shutil.rmtree(copy)
        return found

    def raw(*_):
        raise KeyError("fingerprint")

    assert outcome(lambda *_: {"bits": "right"}) == damage.HARMLESS
    assert outcome(lambda *_: {"bits": "wrong"}) == damage.SILENT
    assert outcome(raw) == damage.RAW

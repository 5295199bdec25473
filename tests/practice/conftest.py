"""One judge for all tests of the folder: what takes long is starting it."""

from __future__ import annotations

import pytest

from shardwise._practice.exercise import Exercise, find, load_all
from shardwise._practice.judge import Judge
from shardwise._practice.sandbox.host import Limits


@pytest.fixture(scope="session")
def exercises() -> list[Exercise]:
    """All exercises."""
    return load_all()


@pytest.fixture(scope="session")
def judge():
    """A warm judge that looks twice."""
    with Judge(Limits(seconds=900, cpu=600)) as made:
        yield made


@pytest.fixture(scope="session")
def judged(exercises, judge):
    """Judge the text of a solution, on inputs that are the same each time."""

    def run(name: str, source: str, seed: int = 3):
        return judge.judge(find(exercises, name), source, "mine.py", seed)

    return run

"""Right programs as people write them: proved, or unknown as the documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest

from .idioms import idioms
from .idioms.judge import differences, judged
from .idioms.unknown import PLAIN, UNKNOWN, expected

IDIOMS = {str(idiom): idiom for idiom in idioms()}
PAGE = Path(__file__).parents[2] / "docs" / "prove" / "index.md"


@pytest.mark.once
@pytest.mark.parametrize("name", IDIOMS)
def test_it_is_proved_or_of_a_kind_that_stays_unknown(name):
    status, proof = judged(IDIOMS[name])
    assert status == expected(name), proof


@pytest.mark.rare
@pytest.mark.once
@pytest.mark.parametrize("name", IDIOMS)
def test_it_is_right_on_real_devices(name):
    assert not differences(IDIOMS[name])


def test_every_kind_that_stays_unknown_is_on_the_page():
    _, _, rest = PAGE.read_text().partition("## What stays unknown\n")
    section = rest.partition("\n## ")[0]
    for kind in UNKNOWN:
        assert f"- **{kind}**" in section
    named = {*PLAIN}.union(*UNKNOWN.values())
    assert named <= set(IDIOMS)
    assert len(named) == len(PLAIN) + sum(map(len, UNKNOWN.values()))


def test_the_counts_on_the_page():
    """The page has the lines that the command prints, as the expected statuses add up."""
    text = PAGE.read_text()
    for level in ("production", "harder"):
        own = [expected(name) for name, idiom in IDIOMS.items() if idiom.level == level]
        unknown, itself = own.count("unknown"), own.count("proved against itself")
        assert (
            f"{level}: {len(own) - unknown} of {len(own)} proved, {itself} of them only against "
            f"itself; {unknown} unknown, 0 refuted, 0 wrong on devices"
        ) in text


def test_the_command_counts():
    command = [sys.executable, "-m", "tests.meaning.idioms", "--proofs", "vocabulary.embedding"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "embedding_of_rows_in_range" in done.stdout
    assert "production: 1 of 1 proved, 0 of them only against itself; 0 unknown" in done.stdout
    assert "harder: 1 of 3 proved, 1 of them only against itself; 2 unknown" in done.stdout

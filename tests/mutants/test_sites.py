"""Bugs that are planted: each changes one expression, and the file still parses."""

from __future__ import annotations

import ast

import pytest

from .__main__ import ROOT, Measured, chosen
from .areas import AREAS
from .sites import draw, mutants


@pytest.mark.parametrize("area", AREAS)
def test_an_area_has_files_and_tests(area):
    assert AREAS[area].files(ROOT)
    assert AREAS[area].test_files(ROOT)


def test_every_bug_is_another_program_that_parses():
    source = (ROOT / "shardwise/_program/collectives.py").read_bytes()
    before = ast.dump(ast.parse(source))
    found = list(mutants(ROOT, "shardwise/_program/collectives.py"))
    assert len(found) > 50
    assert len({mutant.kind for mutant in found}) > 5
    for mutant in found:
        planted = mutant.planted(source)
        assert ast.dump(ast.parse(planted)) != before, mutant


def test_bugs_are_drawn_from_all_files_and_the_same_for_a_seed():
    files = AREAS["sums"].files(ROOT)
    first, again, other = (draw(ROOT, files, 30, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 30
    assert len({mutant.file for mutant in first}) > len(files) / 2


def test_the_tests_that_pass_are_used_the_quickest_first():
    tests = [
        Measured("slow", "make test", [], 50, True),
        Measured("quick", "make test", [], 5, True),
        Measured("broken", "make test", [], 1, False),
        Measured("another area", "make test", [], 1, True),
    ]
    assert [each.file for each in chosen(tests, ["slow", "quick", "broken"])] == ["quick", "slow"]

"""Bugs that are planted: each changes one expression, and the file still parses."""

from __future__ import annotations

import ast

import pytest

from tests.copies import ROOT, Copies

from .__main__ import FOUND, MISSED, SUITES, TIME_WAS_UP, Outcome, Runner, report
from .areas import AREAS
from .sites import Mutant, draw, mutants


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


def test_a_report_counts_what_each_suite_finds():
    mutants = [Mutant("shardwise/x.py", line, 0, 1, "a", "b", "constant") for line in range(1, 5)]
    short, rare = SUITES
    outcomes = [
        Outcome(str(mutants[0]), short, FOUND, "tests/test_x.py::test_a"),
        Outcome(str(mutants[1]), short, MISSED),
        Outcome(str(mutants[1]), rare, FOUND, "tests/test_x.py::test_b"),
        Outcome(str(mutants[2]), short, TIME_WAS_UP),
        Outcome(str(mutants[2]), rare, MISSED),
    ]
    text = report([("engine", mutant) for mutant in mutants], outcomes)
    assert "| engine | 4 | 1 | 2 |" in text
    assert "| all | 4 | 1 | 2 |" in text
    assert f"  {mutants[1]} (tests/test_x.py::test_b)" in text
    assert f"  {mutants[2]} (make test: the time was up; the rest: missed)" in text
    assert f"  {mutants[3]} (make test: not tried; the rest: not tried)" in text


def test_a_test_that_finds_a_bug_passes_without_it(tmp_path, monkeypatch):
    """What fails anyhow is left out, and the tests after it are asked."""
    (tmp_path / "copy1").mkdir()
    (tmp_path / "copy1" / "x.py").write_bytes(b"ok")
    copies = Copies(tmp_path)
    copies.give_back(tmp_path / "copy1")
    tests = Runner(copies, seconds=60.0, ends=float("inf"))

    def run(copy, names, suite, seconds, *args):
        broken = "tests/t.py::always"
        if broken in names or not any(broken in arg for arg in args):
            return 1, f"FAILED {broken} - assert\n"
        planted = (copy / "x.py").read_bytes() != b"ok"
        if planted or "tests/t.py::finds" not in names:
            return 1, "FAILED tests/t.py::finds - assert\n"
        return 0, ""

    monkeypatch.setattr(tests, "run", run)
    tests.sound["tests/t.py::finds"] = True
    mutant = Mutant("x.py", 1, 0, 2, "ok", "(no)", "constant")
    outcome = tests.judge(mutant, next(iter(SUITES)), ["tests/t.py"], 0)
    assert (outcome.outcome, outcome.test) == (FOUND, "tests/t.py::finds")
    assert tests.unsound() == ["tests/t.py::always"]
    assert (tmp_path / "copy1" / "x.py").read_bytes() == b"ok"


def test_tests_that_cannot_be_collected_find_nothing(tmp_path):
    """A pytest that does not start would otherwise find every bug."""
    (tmp_path / "copy1").mkdir()
    (tmp_path / "copy1" / "x.py").write_bytes(b"ok")
    copies = Copies(tmp_path)
    copies.give_back(tmp_path / "copy1")
    tests = Runner(copies, seconds=60.0, ends=float("inf"))
    mutant = Mutant("x.py", 1, 0, 2, "ok", "(no)", "constant")
    with pytest.raises(
        SystemExit, match=r"Without any bug pytest ends with exit status 4:(?s:.)*no_such"
    ):
        tests.judge(mutant, next(iter(SUITES)), ["tests/no_such.py"], 0)

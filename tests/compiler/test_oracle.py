"""The compiler as the oracle of our own record: the gallery, and a sample of the programs."""

from __future__ import annotations

import dataclasses
import random

import pytest

from ..explain.test_xla import GALLERY
from . import oracle

CASES = oracle.cases()


@pytest.mark.parametrize("name", GALLERY)
def test_the_record_of_a_program_is_what_the_compiler_keeps(name):
    found = oracle.compare(name, CASES[name])
    assert found.same == found.predicted == found.kept > 0


@pytest.mark.parametrize("name", random.Random(39).sample(sorted(CASES.keys() - GALLERY), 8))
def test_every_difference_has_a_reason(name):
    assert not oracle.compare(name, CASES[name]).unexplained


@pytest.mark.parametrize(
    "wrong",
    [
        lambda uses: [*uses, uses[-1]],
        lambda uses: uses[1:],
        lambda uses: [dataclasses.replace(uses[0], bytes=uses[0].bytes + 4), *uses[1:]],
        lambda uses: [dataclasses.replace(uses[0], count=3), *uses[1:]],
    ],
    ids=["one too many", "one too few", "other bytes", "in a loop"],
)
def test_an_error_of_the_record_has_none(wrong):
    def explain(compile):
        report = CASES["data_parallel"](compile=compile)
        uses = report.collectives
        return report if compile else dataclasses.replace(report, collectives=tuple(wrong(uses)))

    assert oracle.compare("data_parallel", explain).unexplained
